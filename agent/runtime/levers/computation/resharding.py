"""The lever of sharding_stage: whether fully_shard gives gathered parameters back between forward and backward."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

from ...observe.sharded import FULLY_SHARD, explain_unknown_groups, find_kind, list_inner
from ..lever import Evidence, Lever, Training, read_count

KNOB = "sharding_stage"
KEPT, RESHARDED = 2, 3
"""ZeRO's stages: 3 shards the parameters again after the forward, 2 keeps them gathered until the backward is done."""


class Resharding(Lever):
    """The outermost module is left as it is: the backward needs its parameters at once."""

    knobs = (KNOB,)
    serves_sharded = True

    def __init__(self) -> None:
        self.is_on = False
        self._own: List[Tuple[Any, Any]] = []
        """Each group with what the script chose for it."""
        self._baseline = RESHARDED
        self._wanted: Optional[int] = None
        self._rejected = ""
        self._gathered: Dict[int, Tuple[int, int]] = {}
        """Root -> how many of its inner modules held gathered parameters after a forward, and of how many."""

    def list_refusals(self, training: Training) -> Dict[str, str]:
        sentence = _explain_no_stage(training)
        return {} if sentence is None else {KNOB: sentence}

    def observe(self, training: Training) -> Dict[str, Any]:
        if _explain_no_stage(training) is not None:
            return {}
        groups = [group for groups in list_inner(training.sharded).values() for group in groups]
        self._own = [(group, group.post_forward_mesh_info) for group in groups]
        self._baseline = RESHARDED if any(choice is not None for _, choice in self._own) else KEPT
        return {KNOB: self._baseline}

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._wanted, self._rejected = None, ""
        for group, choice in self._own:
            group.post_forward_mesh_info = choice
        if KNOB in values:
            try:
                self._wanted = _read_stage(values[KNOB])
            except ValueError as error:
                self._rejected = f"{KNOB} was not set: {error}."
        if self._wanted is not None:
            for module in list_inner(training.sharded):
                module.set_reshard_after_forward(self._wanted == RESHARDED, recurse=False)
        self.is_on = self._wanted is not None
        self.begin_timing()

    def after_forward(self, ddp: Any) -> None:
        if id(ddp) not in self._gathered:
            # Sharded parameters are DTensors, gathered ones plain tensors.
            inner = [next(module.parameters(), None) for module in list_inner([ddp])]
            self._gathered[id(ddp)] = (sum(not hasattr(p, "to_local") for p in inner), len(inner))

    def begin_timing(self) -> None:
        self._gathered = {}

    def prove(self) -> Evidence:
        if self._rejected:
            return Evidence(not_consumed={KNOB: self._rejected})
        if self._wanted is None:
            return Evidence()
        gathered, total = (sum(counts) for counts in zip(*self._gathered.values(), (0, 0)))
        sentence = (
            f"After a timed forward {gathered} of {total} inner modules held their gathered parameters."
        )
        if total == 0 or gathered != (total if self._wanted == KEPT else 0):
            return Evidence(not_consumed={KNOB: sentence})
        no_effect = {KNOB: f"The script is at stage {self._wanted} already."}
        return Evidence(
            consumed={KNOB: sentence}, no_effect=no_effect if self._wanted == self._baseline else {}
        )


def _explain_no_stage(training: Training) -> Optional[str]:
    if not training.sharded:
        return "The model is not sharded: every rank holds all parameters all the time."
    if any(find_kind(root) != FULLY_SHARD for root in training.sharded):
        return (
            "FullyShardedDataParallel fixes when it shards parameters again as the model is built. Set "
            "sharding_strategy by hand, or shard with fully_shard, which can change it between steps."
        )
    missing = next(filter(None, map(explain_unknown_groups, training.sharded)), None)
    if missing is not None:
        return missing
    inner = list_inner(training.sharded)
    if not inner:
        return (
            "fully_shard made one group of the whole model, which stays gathered between forward and backward "
            "anyway. Apply fully_shard to the model's layers first."
        )
    groups = [group for groups in inner.values() for group in groups]
    if any(g.mesh_info.shard_mesh_dim is None for g in groups):
        return "The script replicates some layers instead of sharding them."
    if any(g.post_forward_mesh_info not in (None, g.mesh_info) for g in groups):
        return (
            "The script shards parameters again over a part of the ranks (reshard_after_forward is a number)."
        )
    return None


def _read_stage(value: Any) -> int:
    stage = read_count(value, KEPT)
    if stage > RESHARDED:
        raise ValueError(f"{value!r} is no stage: 2 keeps parameters gathered, 3 shards them again")
    return stage
