"""How a strategy wants gradients reduced: over which communicators, in how many levels, in which number format."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, Mapping, Optional, Set, Tuple

from ..lever import read_count, read_switch
from .nccl_options import Configuration, read_configuration

BETWEEN = "hierarchical_allreduce_gloo_between"
LEVELS = ("use_hierarchical_allreduce", "hierarchical_allreduce_inter_nranks", BETWEEN)
GROUPED = ("nccl_comm_num", "sync_nccl_allreduce", *LEVELS)
"""Knobs that need process groups of their own."""
WHOLE = (*GROUPED, "fp16_allreduce", "fp16_allreduce_dtype")
COMPRESSION = ("dgc", "dgc_rank")
KNOBS = (*WHOLE, *COMPRESSION)
FORMATS = ("fp16", "bf16")
USUAL_RANK = 2


@dataclass(frozen=True)
class ReductionPlan:
    """Everything the one communication hook composes."""

    communicators: int = 1
    serial: bool = False
    """One bucket after another, instead of all that are ready at once."""
    inner_size: int = 0
    """Ranks in the lower level of a hierarchical allreduce; 0 means flat."""
    wire_format: Optional[str] = None
    """"fp16" or "bf16" on the wire; None sends gradients as they are."""
    gloo_between: bool = False
    """The upper level goes over gloo, whatever the job's own backend is."""
    rank: int = 0
    """Rank to which gradient matrices are compressed (PowerSGD); 0 sends them whole."""
    configuration: Configuration = ()
    """What NCCL's communicators are made with where that is not the job's own."""

    @property
    def needs_hook(self) -> bool:
        """Whether a communication hook reduces, and not DDP itself."""
        return replace(self, configuration=()) != BASELINE

    @property
    def own_groups(self) -> int:
        """Groups of all ranks that it takes beside the model's own."""
        if self.rank or not self.needs_hook:
            return int(bool(self.configuration))
        # Lanes never use the script's own group: its collectives (SyncBatchNorm's, say) run on another thread.
        keeps_own = not (self.serial or self.inner_size or self.configuration)
        return self.communicators - keeps_own


BASELINE = ReductionPlan()
"""DDP's own: one communicator, flat, no conversion, buckets queued without waiting. It needs no hook."""


def resolve_reduction(
    values: Mapping[str, Any], world_size: int, local_world_size: int
) -> Tuple[ReductionPlan, Dict[str, str]]:
    """The plan for baseline + values, and the knobs that cannot be taken with the reason."""
    rejected: Dict[str, str] = {}
    taken: Dict[str, Any] = {
        "nccl_comm_num": 1,
        "sync_nccl_allreduce": False,
        "use_hierarchical_allreduce": False,
        "hierarchical_allreduce_inter_nranks": local_world_size,
        BETWEEN: False,
        "fp16_allreduce": False,
        "fp16_allreduce_dtype": "fp16",
        "dgc": False,
        "dgc_rank": USUAL_RANK,
    }
    chosen: Set[str] = set()
    for knob in KNOBS:
        if knob not in values:
            continue
        try:
            taken[knob] = _read(knob, values[knob])
            chosen.add(knob)
        except ValueError as error:
            rejected[knob] = f"{knob} was not set: {error}."
    inner_size = 0
    if taken["use_hierarchical_allreduce"]:
        inner_size = taken["hierarchical_allreduce_inter_nranks"]
        if world_size % inner_size or not 1 < inner_size < world_size:
            sentence = (
                f"Groups of {inner_size} ranks do not split {world_size} ranks into two levels; "
                "hierarchical_allreduce_inter_nranks must divide the world and be neither 1 nor all of it."
            )
            rejected.update({knob: sentence for knob in LEVELS if knob in chosen})
            inner_size = 0
    else:
        sentence = "use_hierarchical_allreduce is off, so there are no levels."
        idle = {LEVELS[1]: local_world_size, BETWEEN: False}
        rejected.update({knob: sentence for knob, usual in idle.items() if taken[knob] != usual})
    if "fp16_allreduce_dtype" in chosen and not taken["fp16_allreduce"]:
        rejected["fp16_allreduce_dtype"] = "fp16_allreduce is off, so nothing is converted."
    if taken["dgc"]:
        sentence = "dgc is on: its compression takes the place of every other reduction."
        rejected.update({knob: sentence for knob in WHOLE if knob in chosen})
        return ReductionPlan(rank=taken["dgc_rank"]), rejected
    if "dgc_rank" in chosen:
        rejected["dgc_rank"] = "dgc is off, so nothing is compressed."
    wire_format = taken["fp16_allreduce_dtype"] if taken["fp16_allreduce"] else None
    gloo_between = bool(inner_size and taken[BETWEEN])
    plan = ReductionPlan(
        taken["nccl_comm_num"],
        # A thread hands over both levels: two of them could give NCCL's communicators two orders on two ranks.
        taken["sync_nccl_allreduce"] or gloo_between,
        inner_size,
        wire_format,
        gloo_between,
    )
    return plan, rejected


def plan_strategy(values: Mapping[str, Any], world_size: int, local_world_size: int) -> ReductionPlan:
    """The plan of a whole strategy; what of it cannot be taken is left out."""
    plan, _ = resolve_reduction(values, world_size, local_world_size)
    try:
        return replace(plan, configuration=read_configuration(values))
    except ValueError:
        return plan


def _read(knob: str, value: Any) -> Any:
    if knob in ("nccl_comm_num", "hierarchical_allreduce_inter_nranks", "dgc_rank"):
        count = read_count(value, 1)
        if knob == "nccl_comm_num" and count > 16:
            raise ValueError(f"{count} communicators are more than the 16 that are allowed")
        return count
    if knob == "fp16_allreduce_dtype":
        if value not in FORMATS:
            raise ValueError(f"{value!r} is none of {', '.join(FORMATS)}")
        return value
    return read_switch(value)
