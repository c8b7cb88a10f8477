"""How a sharded model's collectives travel: over which communicator, from which memory, how many at once."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch
import torch.distributed as dist

from ... import private_torch
from ...backends import find_backend, find_timeout
from ...observe.sharded import list_parts
from ..lever import read_count, read_switch
from ..reduction.communicators import NoRoom, claim_room, explain_no_order
from .scatter_watch import ScatterWatch

SEPARATE, BUFFERS, MEMORY = (
    "sharding_separate_reduction",
    "sharding_reduce_buffers",
    "sharding_group_memory",
)
KNOBS = (SEPARATE, BUFFERS, MEMORY)
_FROM_GROUP = "ProcessGroupAlloc"
_USUAL = ("Default", _FROM_GROUP)
"""How the names of torch's own kinds of collectives begin; others are the script's."""


class ScatterPath:
    """All of it is exact: the same numbers are added up in the same order."""

    knobs = KNOBS

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._groups: List[Any] = []
        self._own_process_groups: List[Tuple[Any, Any]] = []
        """Each group's place in the mesh, with the script's own communicator for reductions (None: the gathers')."""
        self._made: Dict[int, Any] = {}
        """Place in the mesh, by its id -> the communicator made for it, kept for the session."""
        self._own_buffers: List[Tuple[Any, int]] = []
        """Each group and context with the script's own number of buffers."""
        self._own_memory: List[Tuple[Any, Any, Any]] = []
        """Each group with the script's own kind of gathers and reductions."""
        self._baseline: Dict[str, Any] = {}
        self._taken: Dict[str, Any] = {}
        self._in_place: Dict[str, Any] = {}
        """What the last switch changed."""
        self.makes_groups = False
        """Whether the last switch made a communicator, which is built with its first collective."""

    def list_refusals(self, groups: List[Any], roots: List[Any]) -> Dict[str, str]:
        found = {
            SEPARATE: _explain_no_group(groups, roots, self._device),
            BUFFERS: _explain_no_buffers(groups),
            MEMORY: _explain_no_memory(groups, self._device),
        }
        return {knob: sentence for knob, sentence in found.items() if sentence is not None}

    def observe(self, groups: List[Any]) -> Dict[str, Any]:
        """The baseline of those knobs that this torch has."""
        self._groups, self._baseline = groups, {}
        own, scatter, most = private_torch.SCATTER_GROUP, private_torch.SCATTER_BUFFERS, 1
        if all(own.is_in(group.mesh_info) for group in groups):
            self._own_process_groups = [(group.mesh_info, own.of(group.mesh_info)) for group in groups]
            self._baseline[SEPARATE] = any(found is not None for _, found in self._own_process_groups)
        if all(scatter.is_in(group) for group in groups):
            contexts = list({id(c): c for c in map(private_torch.GATHER_CONTEXT.of, groups)}.values())
            most = max(scatter.of(context) for context in contexts)
            self._own_buffers = [(owner, scatter.of(owner)) for owner in (*groups, *contexts)]
            self._baseline[BUFFERS] = most
        if all(private_torch.REDUCTION_BUFFERS.is_in(group) for group in groups):
            kinds = private_torch.GATHER_BUFFERS, private_torch.REDUCTION_BUFFERS
            self._own_memory = [(group, kinds[0].of(group), kinds[1].of(group)) for group in groups]
            self._baseline[MEMORY] = any(map(_is_from_group, groups))
        return dict(self._baseline)

    def switch(self, values: Mapping[str, Any], roots: List[Any]) -> Dict[str, str]:
        """Puts the values in force; those that it cannot take, with the reason."""
        self._restore()
        self._taken, rejected, self.makes_groups = {}, {}, False
        for knob in KNOBS:
            if knob in values:
                try:
                    value = values[knob]
                    self._taken[knob] = read_count(value, 1) if knob == BUFFERS else read_switch(value)
                except ValueError as error:
                    rejected[knob] = f"{knob} was not set: {error}."
        self._in_place = {k: value for k, value in self._taken.items() if value != self._baseline.get(k)}
        if SEPARATE in self._in_place:
            try:
                self._separate(self._in_place[SEPARATE], roots)
            except NoRoom as lacking:
                rejected[SEPARATE] = str(lacking)
                del self._taken[SEPARATE], self._in_place[SEPARATE]
        for owner, _ in self._own_buffers if BUFFERS in self._in_place else ():
            private_torch.SCATTER_BUFFERS.set(owner, self._in_place[BUFFERS])
        if MEMORY in self._in_place:
            # After the communicators: the memory is the communicator's that a collective goes over.
            for module in (module for root in roots for module in list_parts(root).values()):
                module.set_allocate_memory_from_process_group_for_comm(self._in_place[MEMORY])
        return rejected

    def _restore(self) -> None:
        if SEPARATE in self._in_place:
            for mesh, own in self._own_process_groups:
                private_torch.SCATTER_GROUP.set(mesh, own)
        for owner, count in self._own_buffers if BUFFERS in self._in_place else ():
            private_torch.SCATTER_BUFFERS.set(owner, count)
        if MEMORY in self._in_place:
            for group, gather, reduction in self._own_memory:
                private_torch.GATHER_BUFFERS.set(group, gather)
                private_torch.REDUCTION_BUFFERS.set(group, reduction)
        self._in_place = {}

    def _separate(self, on: bool, roots: List[Any]) -> None:
        """Making a communicator is collective, and done once."""
        if on and not self._made:
            meshes = {id(mesh): mesh.shard_process_group for mesh, _ in self._own_process_groups}
            if "nccl" in (find_backend(group, self._device) for group in meshes.values()):
                # torch makes one for each set of ranks.
                sets = {tuple(dist.get_process_group_ranks(group)) for group in meshes.values()}
                claim_room(len(sets), self._device)
            for root in roots:
                private_torch.SEPARATE_SCATTER.of(root)()
            self.makes_groups = True
            self._made = {
                id(mesh): private_torch.SCATTER_GROUP.of(mesh) for mesh, _ in self._own_process_groups
            }
            for place, group in meshes.items():
                timeout = find_timeout(group, self._device)
                if timeout is not None:  # torch gives it its usual one
                    self._made[place].set_timeout(timeout)
        for mesh, _ in self._own_process_groups:
            private_torch.SCATTER_GROUP.set(mesh, self._made[id(mesh)] if on else None)

    def judge(self, knob: str, watch: ScatterWatch) -> Tuple[bool, str]:
        """Whether this knob was in force, with a sentence."""
        wanted, total = self._taken[knob], len(watch.formats)
        if knob == SEPARATE:
            shared = {id(group.mesh_info.shard_process_group) for group in self._groups}
            apart = sum(id(found) not in shared for found in watch.process_groups)
            sentence = f"{apart} of {total} reductions went over a communicator of their own."
            return total > 0 and apart == (total if wanted else 0), sentence
        if knob == BUFFERS:
            sentence = f"Up to {watch.most_under_way} reductions kept their buffers at once."
            return 0 < watch.most_under_way == min(wanted, _count_most(self._groups)), sentence
        found = sum(map(_is_from_group, self._groups))
        sentence = f"{found} of {len(self._groups)} groups take their buffers from the communicator's memory."
        return total > 0 and found == (len(self._groups) if wanted else 0), sentence

    def is_as_before(self, knob: str) -> bool:
        """Whether the value is the script's own."""
        return knob not in self._in_place


def _count_most(groups: List[Any]) -> int:
    """Reductions in one backward of the model that has most of them."""
    counts: Dict[int, int] = {}
    for group in groups:
        if any(p.sharded_param.requires_grad for p in group.fsdp_params):
            context = id(private_torch.GATHER_CONTEXT.of(group))
            counts[context] = counts.get(context, 0) + 1
    return max(counts.values(), default=0)


def _is_from_group(group: Any) -> bool:
    return type(private_torch.REDUCTION_BUFFERS.of(group)).__name__.startswith(_FROM_GROUP)


def _explain_no_group(groups: List[Any], roots: List[Any], device: torch.device) -> Optional[str]:
    missing = (
        private_torch.explain_missing(root, (private_torch.SEPARATE_SCATTER,))
        or private_torch.explain_missing(group.mesh_info, (private_torch.SCATTER_GROUP,))
        for root in roots
        for group in groups
    )
    sentence = next(filter(None, missing), None)
    return sentence or explain_no_order(find_backend(groups[0].mesh_info.shard_process_group, device))


def _explain_no_buffers(groups: List[Any]) -> Optional[str]:
    missing = (private_torch.explain_missing(group, (private_torch.SCATTER_BUFFERS,)) for group in groups)
    sentence = next(filter(None, missing), None)
    return sentence or _explain_own_collectives(groups)


def _explain_own_collectives(groups: List[Any]) -> Optional[str]:
    kinds = (private_torch.GATHER_BUFFERS, private_torch.REDUCTION_BUFFERS)
    found = (kind.find(group) for group in groups for kind in kinds)
    for name in (type(collective).__name__ for collective in found if collective is not None):
        if not name.startswith(_USUAL):
            return f"The script has collectives of its own kind ({name}), which are left as they are."
    return None


def _explain_no_memory(groups: List[Any], device: torch.device) -> Optional[str]:
    kinds = (private_torch.GATHER_BUFFERS, private_torch.REDUCTION_BUFFERS)
    process_group = groups[0].mesh_info.shard_process_group
    missing = [private_torch.explain_missing(group, kinds) for group in groups]
    missing.append(private_torch.explain_missing(process_group, (private_torch.GET_BACKEND,)))
    sentence = next(filter(None, missing), None) or _explain_own_collectives(groups)
    if sentence is not None:
        return sentence
    backend = private_torch.GET_BACKEND.of(process_group)(device)
    if not hasattr(backend, "supports_tensor_alloc") or not backend.supports_tensor_alloc(device):
        name = find_backend(process_group, device)
        return f"{name} has no memory of its own for communication on this device."
    return None
