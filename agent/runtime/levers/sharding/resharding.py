"""The lever of sharding_stage and sharding_gather_ranks: what a rank keeps of parameters from forward to backward."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch
import torch.distributed as dist

from ... import private_torch
from ...observe.sharded import list_inner
from ..lever import Evidence, Lever, Training, read_count
from .layers import explain_no_layers
from .leftovers import Leftovers

_FIXED = (
    "FullyShardedDataParallel fixes when it shards parameters again as the model is built. Set sharding_strategy by "
    "hand, or shard with fully_shard, which can change it between steps."
)
STAGE, RANKS = "sharding_stage", "sharding_gather_ranks"
KEPT, RESHARDED = 2, 3
"""ZeRO's stages: 3 shards the parameters again after the forward, 2 keeps them gathered until the backward is done."""
ALL_RANKS = 0


class Resharding(Lever):
    """The outermost module is left as it is: the backward needs its parameters at once."""

    knobs = (STAGE, RANKS)
    serves_sharded = True
    serves_replicas = False

    def __init__(self) -> None:
        self.is_on = False
        self._own: List[Tuple[Any, Any]] = []
        """Each group with what the script chose for it."""
        self._baseline = RESHARDED
        self._wanted: Optional[int] = None
        self._ranks: Optional[int] = None
        self._rejected: Dict[str, str] = {}
        self._meshes: Dict[Tuple[int, int], Any] = {}
        """Process group by its id, and ranks -> the mesh to shard over again, kept for the session."""
        self._leftovers = Leftovers()
        self._gathered: Dict[int, Tuple[int, int, int]] = {}
        """Root -> how many of its inner modules held gathered parameters after a forward, how many a larger share than
        before it, and of how many."""

    def list_refusals(self, training: Training) -> Dict[str, str]:
        sentence = _explain_no_stage(training)
        if sentence is not None:
            return dict.fromkeys(self.knobs, sentence)
        sentence = _explain_no_fewer_ranks(training)
        return {} if sentence is None else {RANKS: sentence}

    def observe(self, training: Training) -> Dict[str, Any]:
        if _explain_no_stage(training) is not None:
            return {}
        groups = [group for groups in list_inner(training.sharded).values() for group in groups]
        self._own = [(group, group.post_forward_mesh_info) for group in groups]
        self._baseline = RESHARDED if any(choice is not None for _, choice in self._own) else KEPT
        return {STAGE: self._baseline, RANKS: ALL_RANKS}

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        inner = list_inner(training.sharded)
        self._leftovers.stop()
        for module, groups in inner.items():
            if any(group.is_sharded_post_forward for group in groups):
                # The script has not called backward since: what it holds goes by the mesh that it is about to lose.
                module.reshard()
        for group, choice in self._own:
            _shard_over(group, choice)
        self._wanted, self._ranks, self._rejected = None, None, {}
        for knob in self.knobs:
            if knob in values:
                try:
                    self._read(knob, values[knob])
                except ValueError as error:
                    self._rejected[knob] = f"{knob} was not set: {error}."
        for module in inner if self._wanted is not None else ():
            module.set_reshard_after_forward(self._wanted == RESHARDED, recurse=False)
        if self._ranks:
            for group in (group for groups in inner.values() for group in groups):
                _shard_over(group, self._provide_mesh(group.mesh_info, self._ranks))
        if self._wanted == KEPT or self._ranks:
            # Where the script itself keeps parameters gathered, it does so by its own choice.
            chosen = {id(group) for group, choice in self._own if choice is not None}
            ours = {m: groups for m, groups in inner.items() if any(id(group) in chosen for group in groups)}
            self._leftovers.watch(ours, list(ours))
        self.is_on = self._wanted is not None or self._ranks is not None
        self.begin_timing()

    def before_step(self) -> None:
        self._leftovers.drop()

    def end_segment(self, training: Training) -> None:
        self._leftovers.stop()

    def _read(self, knob: str, value: Any) -> None:
        if knob == STAGE:
            self._wanted = _read_stage(value)
            return
        ranks = read_count(value, ALL_RANKS)
        for size in {group.mesh_info.shard_mesh_size for group, _ in self._own}:
            if ranks and (size % ranks or not 1 < ranks < size):
                raise ValueError(f"groups of {ranks} ranks do not split the {size} that hold the parameters")
        if ranks and (self._wanted or self._baseline) == KEPT:
            raise ValueError(f"parameters stay gathered from the forward on ({STAGE} {KEPT})")
        self._ranks = ranks

    def _provide_mesh(self, mesh: Any, ranks: int) -> Any:
        """Collective where it is new: groups of so many neighbouring ranks."""
        key = id(mesh.shard_process_group), ranks
        if key not in self._meshes:
            self._meshes[key] = private_torch.MAKE_MESH.load()(ranks, mesh)
        return self._meshes[key]

    def after_forward(self, ddp: Any) -> None:
        if id(ddp) not in self._gathered:
            inner = list_inner([ddp])
            # Sharded parameters are DTensors, gathered ones plain tensors.
            gathered = sum(not hasattr(next(module.parameters(), None), "to_local") for module in inner)
            shared = sum(any(group.is_sharded_post_forward for group in groups) for groups in inner.values())
            self._gathered[id(ddp)] = gathered, shared, len(inner)

    def begin_timing(self) -> None:
        self._gathered = {}

    def prove(self) -> Evidence:
        evidence = Evidence(not_consumed=dict(self._rejected))
        gathered, shared, total = (sum(counts) for counts in zip(*self._gathered.values(), (0, 0, 0)))
        when = "After a timed forward"
        if self._wanted is not None:
            sentence = f"{when} {gathered} of {total} inner modules held their gathered parameters."
            proved = total > 0 and gathered == (total if self._wanted == KEPT else 0)
            (evidence.consumed if proved else evidence.not_consumed)[STAGE] = sentence
            if proved and self._wanted == self._baseline:
                evidence.no_effect[STAGE] = f"The script is at stage {self._wanted} already."
        if self._ranks is not None:
            sentence = f"{when} {shared} of {total} inner modules were sharded over {self._ranks} ranks only."
            if self._ranks == ALL_RANKS:
                sentence = (
                    f"{when} {shared} of {total} inner modules were sharded over fewer ranks than before."
                )
            proved = total > 0 and shared == (total if self._ranks else 0)
            (evidence.consumed if proved else evidence.not_consumed)[RANKS] = sentence
            if proved and self._ranks == ALL_RANKS:
                evidence.no_effect[RANKS] = "The script shards over all ranks again already."
        return evidence


def _shard_over(group: Any, mesh: Any) -> None:
    """None keeps parameters gathered; the group's own mesh shards them again as they were."""
    if group.post_forward_mesh_info is mesh:
        return
    group.post_forward_mesh_info = mesh
    for parameter in group.fsdp_params:
        parameter.post_forward_mesh_info = mesh
        if mesh is not None and mesh is not group.mesh_info:
            private_torch.CHOOSE_SHARES.of(parameter)(
                torch.empty(parameter.sharded_param.size(), device="meta")
            )


def _explain_no_stage(training: Training) -> Optional[str]:
    missing = explain_no_layers(
        training.sharded, _FIXED, "it stays gathered between forward and backward anyway"
    )
    if missing is not None:
        return missing
    groups = [group for groups in list_inner(training.sharded).values() for group in groups]
    if any(g.mesh_info.shard_mesh_dim is None for g in groups):
        return "The script replicates some layers instead of sharding them."
    if any(g.post_forward_mesh_info not in (None, g.mesh_info) for g in groups):
        return (
            "The script shards parameters again over a part of the ranks (reshard_after_forward is a number)."
        )
    return None


def _explain_no_fewer_ranks(training: Training) -> Optional[str]:
    groups = [group for groups in list_inner(training.sharded).values() for group in groups]
    parameters = [parameter for group in groups for parameter in group.fsdp_params]
    missing = private_torch.explain_not_loadable((private_torch.MAKE_MESH,)) or next(
        filter(None, (private_torch.explain_missing(p, (private_torch.CHOOSE_SHARES,)) for p in parameters)),
        None,
    )
    if missing is not None:
        return missing
    sizes = {group.mesh_info.shard_mesh_size for group in groups}
    if not any(all(size % ranks == 0 and ranks < size for size in sizes) for ranks in range(2, max(sizes))):
        return "The ranks that hold the parameters cannot be split into groups of at least 2."
    if any(getattr(parameter, "is_dtensor", False) for parameter in parameters):
        return "Tensor parallelism splits parameters too: torch shards such ones over all ranks again only."
    if any(group.mesh_info.mesh.size() != dist.get_world_size() for group in groups):
        return "The model's mesh is a part of the ranks only; further groups cannot be made for it."
    return None


def _read_stage(value: Any) -> int:
    stage = read_count(value, KEPT)
    if stage > RESHARDED:
        raise ValueError(f"{value!r} is no stage: 2 keeps parameters gathered, 3 shards them again")
    return stage
