"""Launches that broke off, and whether the script or a strategy is to blame for it.

A strategy is to blame where launches die under it that live without it. Launches that die after about as many steps, or
in the same way at the same place, whatever was in force, are the script's; so is one that carried only the baseline.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Block, BlockState, JobHistory, Outcome, Session, SessionState
from advisor.tuning.history.record import Record

_SLACK_STEPS = 10
_SLACK = 0.1
"""Launches that ended within so many steps, or such a share of them, of each other ended at one step: what ends them
may be a file's size or a time."""
OUR_FAULT = "the runtime failed, not the script"
"""Of a launch that this product broke off; the runtime's own words."""

Cause = tuple[str, Value | None] | Changes
"""What may be to blame: a knob at one value, a knob at any (None), or a strategy."""


@dataclass(frozen=True)
class BreakOff:
    """A launch that did not end as it was asked to."""

    session: Session
    in_force: frozenset[Changes]
    """Strategies that raced when it ended, or that it was launched with; none where only the baseline did."""

    @property
    def steps(self) -> int:
        """Steps after which it ended."""
        return self.session.total_steps

    @property
    def way(self) -> str:
        """What ended it, without the numbers: two launches that ended at one place have the same."""
        return re.sub(r"\d+", "#", f"{self.session.outcome} {self.session.reason}")

    def is_near(self, other: "BreakOff") -> bool:
        """Whether both ended after about as many steps."""
        apart = abs(self.steps - other.steps)
        return self.steps > 0 and apart <= max(_SLACK_STEPS, _SLACK * self.steps)


@dataclass(frozen=True)
class ScriptFailure:
    """Launches that broke off by the script's own fault, the last one last."""

    launches: tuple[BreakOff, ...]
    at_one_step: bool
    """Whether it comes after about as many steps each time: the next launch will end there as well."""

    @property
    def last(self) -> BreakOff:
        """The last of them."""
        return self.launches[-1]


def list_break_offs(record: Record) -> list[BreakOff]:
    """Return the launches of this budget that broke off by themselves, oldest first."""
    began = record.began_at()
    found = [s for s in record.sessions if s.state.is_final and (began is None or s.created_at >= began)]
    return [BreakOff(s, list_in_force(s, record.blocks_in(s.id))) for s in found if _broke_off(s)]


def _broke_off(session: Session) -> bool:
    if OUR_FAULT in session.reason or session.state is not SessionState.ENDED or session.outcome is None:
        return False
    # A rank that something killed tells nothing by itself; again and again at one step it is the script.
    return session.outcome.is_configurations_fault or (session.was_lost and session.total_steps > 0)


def list_in_force(session: Session, blocks: Iterable[Block]) -> frozenset[Changes]:
    """Return the strategies that a session carried when it ended; `blocks` are its own."""
    raced = {b.plan.overrides for b in blocks if b.state is BlockState.VOID and b.plan.overrides}
    return frozenset(raced | ({session.cold} if session.cold else set()))


def count_steps(session: Session, blocks: Iterable[Block]) -> int:
    """Return how many steps a session made at least; `blocks` are its own."""
    done = [b.result for b in blocks if b.result is not None]
    timed = sum(r.steps + r.warmup_steps + r.excluded_steps + len(r.segments) for r in done)
    return max(session.total_steps, timed)


def is_step_new(history: JobHistory, session: Session) -> bool:
    """Whether no other launch got beyond the step at which this one broke off: the script may end there by itself."""
    here = BreakOff(session, frozenset())
    others = [s for s in history.sessions if s.id != session.id]
    reached = [
        BreakOff(s.model_copy(update={"total_steps": _count(history, s)}), frozenset()) for s in others
    ]
    return session.total_steps > 0 and all(o.steps < here.steps or o.is_near(here) for o in reached)


def may_end_there(history: JobHistory, session: Session) -> bool:
    """Whether the script may break off at that step by itself: no other launch got beyond, or broke off elsewhere."""
    here = BreakOff(session, frozenset())
    others = [BreakOff(s, frozenset()) for s in history.sessions if s.id != session.id and _broke_off(s)]
    return is_step_new(history, session) and all(other.is_near(here) for other in others)


def _count(history: JobHistory, session: Session) -> int:
    return count_steps(session, _blocks_in(history, session))


def _blocks_in(history: JobHistory, session: Session) -> list[Block]:
    return [block for block in history.blocks if block.session_id == session.id]


def count_deaths(history: JobHistory, changes: Changes) -> int:
    """Return how many launches broke off while a strategy was in force in them."""
    return sum(
        _broke_off(s) and changes in list_in_force(s, _blocks_in(history, s)) for s in history.sessions
    )


def is_to_blame(history: JobHistory, session: Session, changes: Changes) -> bool:
    """Whether a strategy that alone raced the baseline when a launch broke off is given up for it.

    Not where no launch without it got as far, nor where the baseline alone broke off in the same way. One that was
    measured before is not given up for one launch either, because scripts die by themselves too.
    """
    way = BreakOff(session, frozenset()).way
    own = [s for s in history.sessions if _broke_off(s) and not list_in_force(s, _blocks_in(history, s))]
    is_own_way = may_end_there(history, session) or any(BreakOff(s, frozenset()).way == way for s in own)
    if is_own_way and not session.cold:
        return False
    survived = any(b.state is BlockState.DONE and b.plan.overrides == changes for b in history.blocks)
    return not survived or count_deaths(history, changes) > 1


def find_script_failure(record: Record) -> ScriptFailure | None:
    """Return the launches that the script itself broke off; None where a strategy may be to blame, or nothing did."""
    found = list_break_offs(record)
    candidates: list[ScriptFailure] = []
    for this in reversed(found):
        if is_step_new(record.history, this.session):
            near = tuple(other for other in found if other is this or other.is_near(this))
            candidates.append(ScriptFailure(near, at_one_step=True))
        alike = [b for b in found if b.way == this.way and not _is_explained(record, b, found)]
        candidates.append(ScriptFailure(tuple(alike), at_one_step=False))
    told = [failure for failure in candidates if failure.launches and _is_scripts(record, failure.launches)]
    return max(told, key=lambda f: (f.at_one_step and len(f.launches) > 1, len(f.launches)), default=None)


def _is_scripts(record: Record, launches: Sequence[BreakOff]) -> bool:
    own = [launch for launch in launches if not launch.in_force and not launch.session.was_lost]
    if len(own) > 1 or any(not _began_late(record, launch) for launch in own):
        return True
    if len(launches) < 2 or any(launch.session.outcome is Outcome.OUT_OF_MEMORY for launch in launches):
        return False
    shared = reduce(set.intersection, [_list_causes(launch.in_force) for launch in launches])
    survived = _list_causes({b.plan.overrides for b in record.usable if b.plan.overrides})
    return not shared - survived


def _began_late(record: Record, launch: BreakOff) -> bool:
    """Whether it was ended before its first step, and others made steps: a busy machine starts one launch too late."""
    hung = launch.session.outcome is Outcome.HUNG and launch.steps == 0
    return hung and any(_count(record.history, session) > 0 for session in record.sessions)


def _list_causes(strategies: Iterable[Changes]) -> set[Cause]:
    causes: set[Cause] = set()
    for changes in strategies:
        causes |= {changes, *changes.items(), *((name, None) for name in changes)}
    return causes


def _is_explained(record: Record, launch: BreakOff, found: Sequence[BreakOff]) -> bool:
    """Whether a strategy was in force that was in another launch which broke off, and was never measured."""
    measured = {block.plan.overrides for block in record.usable}
    again = {changes for other in found if other is not launch for changes in other.in_force}
    return bool((launch.in_force & again) - measured)
