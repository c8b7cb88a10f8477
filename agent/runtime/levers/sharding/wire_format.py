"""fp16_allreduce of sharded models: the format in which fully_shard reduces, changed in place."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch
import torch.distributed as dist

from ... import private_torch
from ..lever import read_switch
from ..reduction.reduction_hook import DTYPES
from .scatter_watch import NAMES, ScatterWatch

KNOBS = ("fp16_allreduce", "fp16_allreduce_dtype")


class WireFormat:
    """What was reduced in the script's own number format travels in 16 bits and comes back in the parameters' own.

    Only the format of the reduction is changed, not the policy: by a policy's reduce_dtype fully_shard also adds up the
    micro-batches that it does not reduce yet, and in 16 bits each of those additions would round.
    """

    knobs = KNOBS

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own: List[Tuple[Any, Any]] = []
        """Each group with the format in which the script's own policy has it reduce; None where it converts nothing."""
        self._unsupported: Dict[str, str] = {}
        self._wanted: Optional[str] = None
        self._is_changed = False

    def list_refusals(self, groups: List[Any], roots: List[Any]) -> Dict[str, str]:
        sentence = self._explain_no_format(groups)
        return {} if sentence is None else dict.fromkeys(KNOBS, sentence)

    def _explain_no_format(self, groups: List[Any]) -> Optional[str]:
        names = (private_torch.REDUCTION_FORMAT, private_torch.ADDS_COPIES)
        missing = [private_torch.explain_missing(group, names) for group in groups]
        parameters = (parameter for group in groups for parameter in group.fsdp_params)
        missing += [private_torch.explain_missing(each, [private_torch.POLICY]) for each in parameters]
        sentence = next(filter(None, missing), None)
        if sentence is not None:
            return sentence
        formats = (kind for group in groups for kind in _list_formats(group))
        half = next((kind for kind in formats if kind in DTYPES.values()), None)
        if half is not None:
            return f"The script reduces gradients in {str(half).replace('torch.', '')} already."
        self._unsupported = _find_unsupported(groups[0].mesh_info, self._device)
        if len(self._unsupported) == len(DTYPES):
            return f"The backend scatters no 16-bit format: {self._unsupported['fp16']}"
        return None

    def observe(self, groups: List[Any]) -> Dict[str, Any]:
        self._own = [(group, private_torch.REDUCTION_FORMAT.find(group)) for group in groups]
        return {"fp16_allreduce": False, "fp16_allreduce_dtype": "fp16"}

    def switch(self, values: Mapping[str, Any], roots: List[Any]) -> Dict[str, str]:
        """Puts the values in force; those that it cannot take, with the reason."""
        self._wanted, rejected = read_format(values, self._unsupported)
        if self._wanted is not None or self._is_changed:
            for group, own in self._own:
                private_torch.REDUCTION_FORMAT.set(group, DTYPES.get(self._wanted or "", own))
        self._is_changed = self._wanted is not None
        return rejected

    def judge(self, knob: str, watch: ScatterWatch) -> Tuple[bool, str]:
        """Whether this knob was in force, with a sentence."""
        total = len(watch.formats)
        if self._wanted is None:
            own = sum(kind not in DTYPES.values() for kind in watch.formats)
            return own == total, f"{own} of {total} reductions travelled in the script's own number format."
        if watch.is_partial:
            return False, (
                "The script adds micro-batches up after it has reduced them (set_requires_all_reduce(False)), and "
                "fully_shard does that in the reduction's format: in 16 bits each of these additions would round."
            )
        found = watch.formats.count(DTYPES[self._wanted])
        return 0 < found == total, f"{found} of {total} reductions travelled as {self._wanted}."

    def is_as_before(self, knob: str) -> bool:
        """Whether the value is the script's own."""
        return self._wanted is None


def read_format(
    values: Mapping[str, Any], unsupported: Mapping[str, str]
) -> Tuple[Optional[str], Dict[str, str]]:
    """The 16-bit format that is asked for, None for the script's own; knobs that cannot be taken, with the reason."""
    try:
        wanted = values.get("fp16_allreduce_dtype", "fp16")
        if wanted not in DTYPES:
            raise ValueError(f"{wanted!r} is none of {', '.join(DTYPES)}")
        if not read_switch(values.get("fp16_allreduce", False)):
            idle = {"fp16_allreduce_dtype": "fp16_allreduce is off, so nothing is converted."}
            return None, {knob: why for knob, why in idle.items() if knob in values}
        if wanted in unsupported:
            raise ValueError(f"the backend cannot reduce {wanted} ({unsupported[wanted]})")
    except ValueError as error:
        return None, {knob: f"{knob} was not set: {error}." for knob in KNOBS if knob in values}
    return wanted, {}


def _list_formats(group: Any) -> List[torch.dtype]:
    """The number formats that this group's gradients are reduced in."""
    formats = []
    for parameter in group.fsdp_params:
        if parameter.sharded_param.requires_grad:
            policy = private_torch.POLICY.of(parameter)
            formats.append(policy.reduce_dtype or policy.param_dtype or parameter.sharded_param.dtype)
    return formats


def _find_unsupported(mesh: Any, device: torch.device) -> Dict[str, str]:
    """Collective. 16-bit formats that the backend does not scatter the way fully_shard asks for it."""
    scatter = next(getattr(dist, name) for name in NAMES if hasattr(dist, name))
    group, unsupported = mesh.shard_process_group, {}
    # fp16 is divided before and after a sum, bf16 averaged by the backend.
    for name, op in (("fp16", dist.ReduceOp.SUM), ("bf16", dist.ReduceOp.AVG)):
        parts = torch.ones(dist.get_world_size(group), dtype=DTYPES[name], device=device)
        try:
            scatter(torch.empty(1, dtype=DTYPES[name], device=device), parts, op=op, group=group)
        except RuntimeError as error:
            unsupported[name] = str(error).splitlines()[0]
    return unsupported
