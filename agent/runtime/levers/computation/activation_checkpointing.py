"""The lever of activation checkpointing: off where the script computes activations again that memory can keep."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

import torch
import torch.utils.checkpoint as checkpointing

from ...observe.memory import count_room_at_peak
from ...observe.recomputation import Recomputation
from ...private_torch import REPEATED, REPEATED_IMPL
from ..lever import Evidence, Lever, Training, read_switch

KNOB = "activation_checkpointing"
GIB = 2**30


class ActivationCheckpointing(Lever):
    """Off, what torch.utils.checkpoint is given is called once, in the forward, and its activations are kept.

    The same operations run on the same numbers: torch repeats the random numbers of what it computes again. Where what
    is computed again was seen to do more than that, off is refused.
    """

    knobs = (KNOB,)
    serves_sharded = serves_engines = serves_plain = True

    def __init__(self, recomputation: Recomputation, device: torch.device) -> None:
        self._recomputation, self._device = recomputation, device
        self._values: Mapping[str, Any] = {}
        self._rejected: Dict[str, str] = {}

    def list_refusals(self, training: Training) -> Dict[str, str]:
        reason = self._explain_needed(training)
        return {KNOB: reason} if reason else {}

    def _explain_needed(self, training: Training) -> Optional[str]:
        seen = self._recomputation
        if not seen.was_seen:
            if not any(name.is_in(checkpointing) for name in (REPEATED, REPEATED_IMPL)):
                return REPEATED.explain_missing()
            return "The script computes no activation again in its backward pass: there is nothing to keep instead."
        if seen.reasons:
            return f"What the script computes again must be computed again: {' and '.join(seen.reasons)}."
        if seen.is_reentrant and any(ddp.static_graph for ddp in training.replicas):
            return (
                "With static_graph=True DDP has counted how often each gradient comes where activations are computed "
                "again by use_reentrant=True; kept, they may come otherwise. Give checkpoint() use_reentrant=False."
            )
        more, room = seen.kept_bytes, count_room_at_peak(self._device)
        if more > room > 0:
            return (
                f"Activations that are kept take about {more / GIB:.3g} GiB more of a rank's memory, of which "
                f"{room / GIB:.3g} GiB are free at its peak: a smaller batch has room for them."
            )
        return None

    def observe(self, training: Training) -> Dict[str, Any]:
        return {KNOB: self._recomputation.was_seen}

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._values, self._rejected = values, {}
        self._recomputation.keeps = False
        try:
            self._recomputation.keeps = not read_switch(values.get(KNOB, True))
        except ValueError as error:
            self._rejected[KNOB] = f"{KNOB} was not set: {error}."

    def begin_timing(self) -> None:
        self._recomputation.begin_counting()

    def prove(self) -> Evidence:
        evidence, seen = Evidence(not_consumed=dict(self._rejected)), self._recomputation
        if KNOB not in self._values or self._rejected:
            return evidence
        if not seen.keeps:
            evidence.consumed[KNOB] = (
                "The value equals the baseline's: activations are computed again as the script has it."
            )
        elif seen.repeated or not seen.kept:
            evidence.not_consumed[KNOB] = (
                f"{seen.kept} checkpointed calls kept their activations in the timed steps, and {seen.repeated} were "
                "computed again."
            )
        else:
            more = f", about {seen.kept_bytes / GIB:.3g} GiB more a rank" if seen.kept_bytes else ""
            evidence.consumed[KNOB] = (
                f"{seen.kept} checkpointed calls kept their activations{more}, and none was computed again."
            )
        return evidence
