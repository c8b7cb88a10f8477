"""The lever of DDP's search for unused parameters: off where no step had any."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

from ...private_torch import CHECK_FINALIZED, GET_LOG, IS_STATIC, MARK_READY, explain_missing
from ..lever import Evidence, Lever, Training, read_switch
from ..script_compilation import is_cut_at_buckets
from .gradient_reduction import GradientReduction
from .reducer import explain_no_rebuild, keeps_state
from .reduction_refusals import CUT, KEEPS
from .unused_watch import UnusedWatch

KNOB = "find_unused_parameters"
NEEDED = (
    "Some parameters got no gradient in steps that were seen: DDP's search for them is needed as it stands."
)


class UnusedParameters(Lever):
    """Comes before the lever of the reducer, which builds it with the search or without.

    Whether the search ever found anything, DDP knows of every step since its reducer was built: the set that it found
    last is empty, and it has never changed. From the switch on each pass is watched (`unused_watch`).
    """

    knobs = (KNOB,)

    def __init__(self, reduction: GradientReduction) -> None:
        self._reduction = reduction
        self._values: Mapping[str, Any] = {}
        self._rejected: Dict[str, str] = {}
        self._watch: Optional[UnusedWatch] = None
        self._timed_from = 0
        self._found = ""
        """Once a parameter got no gradient while the search was off: no later arm is proved either."""

    def list_refusals(self, training: Training) -> Dict[str, str]:
        reasons = (self._explain_needed(ddp, training) for ddp in training.replicas)
        reason = next(filter(None, reasons), None)
        return {KNOB: reason} if reason else {}

    def _explain_needed(self, ddp: Any, training: Training) -> Optional[str]:
        if not ddp.find_unused_parameters:
            return "DistributedDataParallel searches for no unused parameters in this script."
        if ddp.static_graph:
            return "With static_graph=True DDP searches for unused parameters in the first step only."
        if len(training.known) > 1:
            return "The script trains several models, and one's backward pass may leave gradients in another."
        if training.repeats_backward or training.awaited.get(id(ddp)):
            return "The script runs backward passes beside the one of each forward: none says that all gradients came."
        if is_cut_at_buckets(ddp):
            return CUT
        if keeps_state(ddp):
            return KEEPS
        return (
            explain_no_rebuild(ddp)
            or explain_missing(ddp, (CHECK_FINALIZED, MARK_READY))
            or explain_missing(ddp.reducer, (IS_STATIC,))
            or (None if _found_nothing(ddp) else NEEDED)
        )

    def observe(self, training: Training) -> Dict[str, Any]:
        return {KNOB: any(ddp.find_unused_parameters for ddp in training.replicas)}

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._values, self._rejected = values, {}
        if self._watch is not None:
            self._watch.end()
            self._watch = None
        searches = True
        try:
            searches = read_switch(values.get(KNOB, True))
        except ValueError as error:
            self._rejected[KNOB] = f"{KNOB} was not set: {error}."
        self._reduction.search_unused(searches)
        if not searches:
            [ddp] = training.replicas
            self._watch = UnusedWatch(ddp)
            self._watch.begin(ddp)

    def begin_timing(self) -> None:
        self._timed_from = self._watch.passes if self._watch is not None else 0

    def prove(self) -> Evidence:
        evidence = Evidence(not_consumed=dict(self._rejected))
        watch, values = self._watch, self._values
        if KNOB not in values or self._rejected:
            return evidence
        if watch is None:
            evidence.consumed[KNOB] = "The value equals the baseline's: DDP searches the graph of every step."
            return evidence
        passes = watch.passes - self._timed_from
        if watch.names:
            count = f"{watch.late_passes} of {watch.passes}"
            self._found = f"{watch.describe()} got no gradient in {count} backward passes."
        elif not all(IS_STATIC.of(reducer)() for reducer in self._reduction.list_searching()):
            self._found = NEEDED
        if self._found or not passes or watch.is_searched:
            evidence.not_consumed[KNOB] = (
                self._found or "DDP searched for unused parameters in the timed steps."
            )
        else:
            evidence.consumed[KNOB] = (
                f"DDP searched no graph in {passes} backward passes, and all parameters got their gradients in "
                "each, as in every step before."
            )
        return evidence


def _found_nothing(ddp: Any) -> bool:
    return GET_LOG.of(ddp)().get("unused_parameter_size") == 0 and bool(IS_STATIC.of(ddp.reducer)())
