"""A real training under an advised strategy: put in force after a few steps, proved as in a trial, then left alone or
watched.

The script goes on whatever happens here: what cannot be put in force on every rank is put in force on none, and said.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Dict, Generator, Mapping, Optional

from ..levers.lever import RelaunchNeeded
from ..link import beat
from ..link.exchange import PeerLost
from ..observe.recorder import StepMarks
from ..races.parts import PEER_TIMEOUT_S, RankParts
from ..races.results import merge_evidence
from .mismatch import describe_mismatch
from .steering import Steering
from .watching import Watch

if TYPE_CHECKING:
    from ..runtime import Runtime

LEAST_SETTLING = 3
"""Steps after the switch that prove nothing yet: DDP rebuilds its buckets in the second one."""
PROOF_STEPS = 10
"""Fewest steps that the proof looks at."""


class Production(Steering):
    """A strategy from the third step on, or, where `parts` and what is known of the script are given, at once."""

    def __init__(
        self,
        runtime: "Runtime",
        strategy: Mapping[str, Any],
        parts: Optional[RankParts] = None,
        found: Optional[Dict[str, Any]] = None,
    ) -> None:
        super().__init__(runtime, parts)
        self._strategy, self._found = strategy, found
        self._has_begun = parts is not None
        self._course = self._put_in_force()
        self._course_ended = False
        settings = strategy.get("watch")
        self._watch = (
            Watch(settings, self._parts.world_size, say) if settings and self._parts.rank == 0 else None
        )

    @property
    def is_over(self) -> bool:
        return self._course_ended and self._watch is None and not self.works_in_steps

    def _begin(self) -> None:
        self._go_on()

    def take_over(self) -> None:
        """At the boundary at which another steering has ended."""
        self._go_on()

    def _advance(self, step: StepMarks) -> bool:
        if not self._course_ended:
            self._go_on()
        elif self._watch is not None:
            self._watch.note(step)
        return False

    def finish_script(self) -> None:
        if self._strategy["changes"] and not self._course_ended and self._parts.rank == 0:
            say("The training ended before it could be proved that the strategy was in force.")

    def _go_on(self) -> None:
        """To the next boundary. A rank that does not answer is the script's affair: its own collectives will say so."""
        try:
            next(self._course)
        except StopIteration:
            self._course_ended = True
        except PeerLost as lost:
            self._course_ended = True
            say(f"The proof is missing: {lost}")

    def _put_in_force(self) -> Generator[None, None, None]:
        parts, levers = self._parts, self._levers
        found = self._found or self._describe_script()
        asked: Dict[str, Any] = dict(self._strategy["changes"])
        left = {knob: why for knob, why in found["refusals"].items() if knob in asked}
        launched = {knob: v for knob, v in asked.items() if knob in self._runtime.environment.cold}
        wanted = {knob: v for knob, v in asked.items() if knob not in left and knob not in launched}
        parts.enter(beat.SWITCHING)
        levers.reduction.keeps_live = False
        levers.begin_race([wanted])
        failure = self._switch(wanted)
        if failure:
            left.update(dict.fromkeys(wanted, failure))
            wanted = {}
            self._switch(wanted)
        self._runtime.recorder.keeps_loss = levers.needs_loss
        parts.enter(beat.TRAINING)
        settling = max(LEAST_SETTLING, levers.least_warm_up, levers.lead_in)
        looking = max(PROOF_STEPS, 2 * levers.period, levers.least_segment)
        settling, looking = parts.agree_on_most([settling, looking], "how long to look")
        for _ in range(settling):
            yield
        levers.begin_timing()
        for _ in range(looking):
            yield
        own = levers.prove(parts.backend, parts.list_replicas())
        evidence = parts.exchange.gather(vars(own), "the proof of a strategy", PEER_TIMEOUT_S)
        if evidence is not None:
            self._report(asked, left, merge_evidence(evidence), found)

    def _switch(self, wanted: Mapping[str, Any]) -> str:
        """Collective. Puts it in force on every rank, or says why one could not."""
        parts, failure = self._parts, ""
        try:
            self._levers.switch(wanted, parts.gather_training())
        except RelaunchNeeded as needed:
            failure = str(needed)
        except Exception as error:  # whatever it is, the other ranks must hear of it
            failure = f"Rank {parts.rank} could not switch to it: {error!r}."
        failures = parts.exchange.gather(failure, "whether all could switch", PEER_TIMEOUT_S) or []
        return str(parts.share(next(filter(None, failures), ""), "whether all could switch"))

    def _report(
        self,
        asked: Mapping[str, Any],
        left: Mapping[str, str],
        evidence: Mapping[str, Mapping[str, str]],
        found: Mapping[str, Any],
    ) -> None:
        in_force = {k: why for k, why in evidence["consumed"].items() if k in asked and k not in left}
        reasons = {**evidence["not_consumed"], **left}
        missing = {
            k: reasons.get(k, "Nothing in this script took it up.") for k in asked if k not in in_force
        }
        warnings = describe_mismatch(self._strategy, found["facts"], found["baseline"])
        if asked:
            say(f"{len(in_force)} of {len(asked)} advised settings are in force on every rank.")
        for knob, why in in_force.items():
            say(f"  {knob} {spell(asked[knob])}: {why}")
        for knob, why in missing.items():
            say(f"  NOT in force: {knob}. {why}")
        for sentence in warnings:
            say(f"  Take care: {sentence}")
        path = self._strategy.get("report")
        if path:
            report = {"in_force": in_force, "missing": missing, "warnings": warnings, "facts": found["facts"]}
            try:
                with open(path, "w") as file:
                    json.dump(report, file, indent=2)
            except OSError as error:
                say(f"  The report could not be written: {error}")


def spell(value: Any) -> str:
    """A knob's value for people."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def say(sentence: str) -> None:
    """One line on standard error, where it disturbs no output that a script's owner parses."""
    print(f"fleet advisor: {sentence}", file=sys.stderr, flush=True)
