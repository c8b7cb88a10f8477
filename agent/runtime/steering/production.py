"""A real training under an advised strategy: put in force after a few steps, proved as in a trial, then left alone or
watched.

The script goes on whatever happens here: what cannot be put in force on every rank is put in force on none, and said;
what cannot be proved is taken back. Where the script goes on with another model or optimizer, so does the strategy.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Generator, List, Mapping, Optional

from ..levers.lever import Evidence, RelaunchNeeded
from ..levers.reduction.gradient_reduction import HOOK_CAME
from ..link import beat
from ..link.exchange import PeerLost
from ..link.rank_output import say
from ..observe.models import RECENT_STEPS
from ..observe.recorder import StepMarks
from ..races.agreement import Agreement, copy_parameters, find_all_apart
from ..races.parts import PEER_TIMEOUT_S, RankParts
from ..races.results import merge_evidence
from .mismatch import describe_mismatch
from .steering import Steering
from .watching import Watch

LEAST_SETTLING = 3
"""Steps after the switch that prove nothing yet: DDP rebuilds its buckets in the second one."""
PROOF_STEPS = 10
"""Fewest steps that the proof looks at."""
SETTLING_IN = RECENT_STEPS + 1
"""Steps after a model or an optimizer came: then one that it replaced is no longer taken to train."""
MOST_INTERRUPTIONS = 5
"""As often in a row the script may go on with something else before the strategy was proved."""
NEVER_LASTS = (
    "The script makes its models or its optimizers anew before it can be proved in force on them, and did so {times} "
    "times. Make them once, or train each of them longer."
)
STEPS_WITHOUT_MEETING = 50
"""Steps of rank 0 after which it is told that the ranks have not begun to count them together."""
NEVER_MET = (
    "in {steps} steps the ranks have found no moment at which all had made equally many exchanges of gradients, so "
    "that none can switch a setting. They exchange differently often, or some of them make no steps."
)
UNUSED = "Nothing in this script took it up."
APART = (
    "Before anything of ours was in force, {apart}. Each rank trains a model of its own: gradients are not averaged in "
    "every step that updates (a no_sync() that ends too late, a model that is not wrapped), or the script averages "
    "parameters by itself now and then. That is worth more than any speed: look at it first."
)
DRIFTED = "{apart}, and they were equal before. The training goes on under the script's own settings."
COPIED = "Rank 0's parameters were copied to all ranks; the state of optimizers is each rank's own."
NOT_COPIED = (
    "The ranks still differ: go back to the last checkpoint before, or start with --copy-on-drift, which copies rank "
    "0's parameters to all ranks in such a case."
)


class Production(Steering):
    """A strategy from the third step on, or, where what is known of the script is given, at once."""

    def __init__(
        self, parts: RankParts, strategy: Mapping[str, Any], found: Optional[Dict[str, Any]] = None
    ) -> None:
        super().__init__(parts)
        self._strategy, self._found = strategy, found
        self._told: List[Any] = []
        """What the last report said."""
        self._has_begun = found is not None
        self._course = self._put_in_force()
        self._course_ended = False
        self._interruptions = 0
        self._agreement: Optional[Agreement] = None
        """While a strategy is in force that was proved."""
        self._wanted: Dict[str, Any] = {}
        """What was proved and is in force."""
        self._kept: List[StepMarks] = []
        """Steps that were passed over since the last boundary."""
        settings = strategy.get("watch")
        self._watch = None
        if settings and parts.rank == 0:
            counted = parts.process.samples
            self._watch = Watch(settings, parts.world_size, say, unit=lambda: counted.unit)

    @property
    def is_over(self) -> bool:
        is_left = self._agreement is None and self._watch is None
        return self._course_ended and is_left and not self.works_in_steps

    def _watch_script(self, step: Optional[StepMarks], forwards: int) -> None:
        super()._watch_script(step, forwards)
        if self._process.models.step == STEPS_WITHOUT_MEETING and self._parts.rank == 0:
            say(f"The strategy is not in force yet: {NEVER_MET.format(steps=STEPS_WITHOUT_MEETING)}")

    def _begin(self) -> None:
        self._go_on()

    def take_over(self) -> None:
        """At the boundary at which another steering has ended."""
        self._go_on()

    def _advance(self, step: StepMarks) -> bool:
        if self._interruptions < MOST_INTERRUPTIONS and self._process.models.take_newcomers():
            self._interruptions = 0 if self._course_ended else self._interruptions + 1
            self._course, self._course_ended, self._agreement = self._put_in_force(again=True), False, None
            self._parts.recorder.keep_steps(0, [])
        if not self._course_ended:
            self._go_on()
            return False
        if self._watch is not None:
            self._watch.note(step)
        if self._agreement is None:
            return False
        passed, self._kept = 1 + len(self._kept), []
        is_due = self._agreement.count(passed) == 0
        if is_due:
            try:
                if not self._drifted(self._agreement):
                    self._take_back_faults()
            except PeerLost:
                self._agreement = None  # a rank has ended, or waits elsewhere: what is in force stays
        self._pass_over()
        return is_due

    def _pass_over(self) -> None:
        """Until the next comparison nothing is decided at boundaries, which then cost next to nothing."""
        if self._agreement is not None and self._watch is None and not self.works_in_steps:
            self._parts.recorder.keep_steps(self._agreement.count(0) - 1, self._kept, gives_way=True)

    def _drifted(self, agreement: Agreement) -> bool:
        """Collective. Whether the ranks train apart now: then every setting is taken back, and the owner is told."""
        apart = agreement.compare()
        if not apart:
            return False
        self._agreement = None
        self._switch({})
        copies = bool(self._strategy.get("copies_parameters"))
        if copies:
            copy_parameters(self._parts.list_replicas())
        if self._parts.rank == 0:
            say(
                f"Every setting was taken back: {DRIFTED.format(apart=apart)} {COPIED if copies else NOT_COPIED}"
            )
            self._write_report({"in_force": {}, "missing": dict.fromkeys(self._strategy["changes"], apart)})
        return True

    def _take_back_faults(self) -> None:
        """Collective. Of what is in force, what on some rank no longer does what was proved."""
        faults = self._merge(self._levers.list_faults(), "what no longer holds")
        if not faults:
            return
        self._wanted = {knob: value for knob, value in self._wanted.items() if knob not in faults}
        self._switch(self._wanted)
        for knob, why in faults.items() if self._parts.rank == 0 else ():
            say(f"NOT in force any more: {knob}. {why} It was taken back.")

    def make_way(self, ddp: Any) -> bool:
        made = super().make_way(ddp)
        if made and self._parts.rank == 0:
            say(HOOK_CAME)
        return made

    def finish_script(self) -> None:
        if self._strategy["changes"] and not self._course_ended and self._parts.rank == 0:
            say("The training ended before it could be proved that the strategy was in force.")

    def _go_on(self) -> None:
        """To the next boundary. Where a rank does not come, nothing is changed: it may not come to hear of that."""
        try:
            next(self._course)
        except StopIteration:
            self._course_ended = True
        except PeerLost as lost:
            self._course_ended = True
            found = (
                "What is in force stays, without proof"
                if self._levers.have_switched
                else "It is not in force"
            )
            say(f"The strategy was not proved. {found}: {lost}")

    def _put_in_force(self, again: bool = False) -> Generator[None, None, None]:
        """Collective. `again`: other models or optimizers train now than those that it was put in force on."""
        parts, levers = self._parts, self._levers
        if again and self._found is not None:
            parts.meet("the coming of another model or optimizer")
            self._switch({})
            if self._interruptions == MOST_INTERRUPTIONS:
                if parts.rank == 0:
                    say(f"The strategy is not in force. {NEVER_LASTS.format(times=MOST_INTERRUPTIONS)}")
                return
            for _ in range(SETTLING_IN):
                yield
            parts.meet("what another model or optimizer refuses")  # ranks that have left exchange nothing
            refusals = self._merge(self._list_refusals(parts.gather_training()), "what ranks refuse")
            levers.refuse(refusals)
            parts.apart_before = find_all_apart(parts)
            self._found = {**self._found, "refusals": refusals}
        found = self._found = self._found or self._describe_script()
        asked: Dict[str, Any] = dict(self._strategy["changes"])
        if parts.rank == 0 and (apart := found["facts"].get("ranks_apart")):
            say(APART.format(apart=apart))
        left = {knob: why for knob, why in found["refusals"].items() if knob in asked}
        launched = {knob: v for knob, v in asked.items() if knob in self._process.environment.cold}
        wanted = {knob: v for knob, v in asked.items() if knob not in left and knob not in launched}
        # The script's own reducer stays beside the new one until that is proved, and comes back where it is not.
        no_live = levers.reduction.explain_no_live(parts.list_replicas()) or not parts.has_room(1)
        levers.reduction.keeps_live = not parts.agree_on_most(
            [int(bool(no_live))], "room beside the reducer"
        )[0]
        levers.reduction.checked_passes = LEAST_SETTLING + PROOF_STEPS
        levers.begin_race([wanted])
        while failed := self._switch(wanted):
            left.update(failed)
            wanted = {knob: value for knob, value in wanted.items() if knob not in failed}
        settling = max(LEAST_SETTLING, levers.least_warm_up, levers.lead_in)
        looking = max(PROOF_STEPS, 2 * levers.period, levers.least_segment)
        settling, looking = parts.agree_on_most([settling, looking], "how long to look")
        agreement = Agreement(parts)
        for _ in range(settling):
            yield
        if self._drifted(agreement):
            return
        levers.begin_timing()
        for _ in range(looking):
            yield
        if self._drifted(agreement):
            return
        own = levers.prove(parts.backend, parts.list_replicas())
        if self._failure:
            own.doubt(f"On rank {parts.rank} {self._failure}.")
        views = parts.exchange.gather(vars(own), "the proof of a strategy", PEER_TIMEOUT_S)
        evidence = merge_evidence([Evidence(**view) for view in views]) if views is not None else Evidence()
        proved = parts.share(list(evidence.consumed), "what was proved")
        undone = [knob for knob in wanted if knob not in proved]
        if undone:
            # What does not do what it is for may still do something else.
            self._switch({knob: value for knob, value in wanted.items() if knob in proved})
        levers.reduction.drop_spares()
        self._wanted = {knob: value for knob, value in wanted.items() if knob in proved}
        self._agreement = agreement if proved else None
        if views is not None:
            unproved = evidence.not_consumed
            left.update({knob: f"{unproved.get(knob, UNUSED)} It was taken back." for knob in undone})
            self._report(asked, left, evidence, found)
        self._pass_over()

    def _switch(self, wanted: Mapping[str, Any]) -> Dict[str, str]:
        """Collective. Puts it in force on every rank; knobs that stand in its way on any, each with its reason."""
        parts, levers = self._parts, self._levers
        failed: Dict[str, str] = {}
        parts.meet("a switch")
        parts.enter(beat.SWITCHING)
        try:
            levers.switch(wanted, parts.gather_training())
        except RelaunchNeeded as needed:
            failed = dict.fromkeys(needed.knobs or wanted, str(needed))
        except Exception as error:  # whatever it is, the other ranks must hear of it
            failed = dict.fromkeys(wanted, f"Rank {parts.rank} could not switch to it: {error!r}.")
        views = parts.exchange.gather(failed, "whether all could switch", PEER_TIMEOUT_S) or []
        parts.recorder.keeps_loss = levers.needs_loss
        parts.enter(beat.TRAINING)
        return dict(
            parts.share({k: why for view in views for k, why in view.items()}, "whether all could switch")
        )

    def _report(
        self,
        asked: Mapping[str, Any],
        left: Mapping[str, str],
        evidence: Evidence,
        found: Mapping[str, Any],
    ) -> None:
        in_force = {k: why for k, why in evidence.consumed.items() if k in asked and k not in left}
        reasons = {**evidence.not_consumed, **left}
        missing = {k: reasons.get(k, UNUSED) for k in asked if k not in in_force}
        warnings = describe_mismatch(self._strategy, found["facts"], found["baseline"])
        told, self._told = self._told, [*in_force, *missing.items()]
        if told == self._told:
            return  # for another model, as for the one before
        if asked:
            say(f"{len(in_force)} of {len(asked)} advised settings are in force on every rank.")
        for knob, why in in_force.items():
            say(f"  {knob} {spell(asked[knob])}: {why}")
        for knob, why in missing.items():
            say(f"  NOT in force: {knob}. {why}")
        for sentence in warnings:
            say(f"  Take care: {sentence}")
        self._write_report(
            {"in_force": in_force, "missing": missing, "warnings": warnings, "facts": found["facts"]}
        )

    def _write_report(self, report: Mapping[str, Any]) -> None:
        path = self._strategy.get("report")
        if not path:
            return
        try:
            with open(path, "w") as file:
                json.dump(report, file, indent=2)
        except OSError as error:
            say(f"  The report could not be written: {error}")


def spell(value: Any) -> str:
    """A knob's value for people."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
