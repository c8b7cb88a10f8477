"""Races: what is measured next, and results that are accepted exactly once."""

import hashlib
import math
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

from advisor.course.races import accept_race, issue_race
from advisor.errors import InvalidResult, LostRace, SessionNotRunning
from advisor.protocol.measured.messages import NextReply, RaceReport
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Block, BlockState, RacePlan, Session, SessionState
from advisor.protocol.views import EventKind, RaceAccepted
from advisor.services.ending import end_session, tell_changes
from advisor.services.jobs import get_job
from advisor.services.measuring.sessions import find_leader_place
from advisor.services.measuring.telemetry import observe_blocks
from advisor.services.planning.planner_queue import PlannerQueue
from advisor.storage import Database, UnitOfWork
from advisor.storage.fault_points import FaultPoint
from advisor.storage.repositories.members import Seat
from advisor.tuning.asked import Tuning
from advisor.tuning.decisions import Race, Wait

_ATTEMPTS = 8
_MAX_STEP_S = 86_400.0
"""Seconds; no step of a training takes a day."""
_MAX_COUNT = 1e15
"""No count of a race is larger than this."""
_MOST_ARMS = 64
"""No race has as many; what is set aside of a report is a row for each result."""
_MOST_ID_CHARS = 100
"""No id is longer, and those that a report names are kept with it."""


@dataclass(frozen=True)
class Accepted:
    """A report that counts."""

    reply: RaceAccepted
    job_id: str | None
    """The job that will ask what comes next; None where its session does not run any more."""


@dataclass(frozen=True)
class Quarantined:
    """A report that was kept but does not count."""

    sentence: str
    differs: bool
    """Another report had been accepted for the same race."""


def next_race(
    database: Database,
    planner_queue: PlannerQueue,
    session_id: str,
    agent_id: str,
    generation: int,
    now: datetime,
) -> NextReply:
    """Return the race that the session is to run now, or why the session is over; waits for a thought about it.

    While a race is being run the same one is returned. Raises StaleSession, Forbidden, SessionNotRunning, and
    LostRace when the job keeps changing while the planner thinks.
    """
    for _ in range(_ATTEMPTS):
        with database.read() as work:
            session = find_leader_place(work, session_id, agent_id, generation)
            if (answer := _known_answer(work, session)) is not None:
                return answer
            version = work.jobs.version(session.job_id) or 0
        decided = planner_queue.take(session.job_id, version)
        if isinstance(decided.decision, Wait):
            raise SessionNotRunning(decided.decision.because)
        with database.begin() as work:
            session = find_leader_place(work, session_id, agent_id, generation)
            if (answer := _known_answer(work, session)) is not None:
                return answer
            if work.jobs.version(session.job_id) != decided.version:
                continue
            if decided.late:
                work.events.append(session.job_id, EventKind.JOB, decided.late, now, session_id=session_id)
            if not isinstance(decided.decision, Race):
                end_session(work, session, decided.decision.because, now)
                return NextReply(end_because=decided.decision.because)
            return NextReply(race=_issue(work, session, decided.decision, now))
    raise LostRace("The job changed again and again while the next race was planned.")


def report_race(
    database: Database,
    tuning: Tuning,
    session_id: str,
    race_id: str,
    agent_id: str,
    report: RaceReport,
    now: datetime,
) -> Accepted | Quarantined:
    """Accept a race's results, all or none of them and exactly once; the same report gets the same answer again.

    A report that comes too late, for another generation, or that differs from the accepted one is kept in
    quarantine: nothing that an agent measured is lost, and nothing is counted twice.
    Raises InvalidResult for numbers that no measurement gives; nothing is kept then.
    """
    _refuse_oversized(session_id, race_id, report)
    for result in report.results.values():
        refuse_implausible(result)
    payload = hashlib.sha256(report.model_dump_json(exclude={"generation"}).encode()).hexdigest()
    # All that needs no database comes before: writers wait for each other.
    with database.begin() as work:
        return _keep_report(work, tuning, session_id, race_id, agent_id, report, payload, now)


def _keep_report(
    work: UnitOfWork,
    tuning: Tuning,
    session_id: str,
    race_id: str,
    agent_id: str,
    report: RaceReport,
    payload: str,
    now: datetime,
) -> Accepted | Quarantined:
    work.jobs.lock_of(session_id)
    seat = work.members.seat_of(session_id, agent_id)
    arms = work.blocks.arms_of(race_id)
    why, differs = "", False
    if seat is None or not arms or arms[0].session_id != session_id:
        why = f"Race {race_id} is no race of a session that this agent holds."
    elif seat.node_rank != 0:
        why = "Only the agent of node rank 0 reports races."
    elif report.generation != seat.generation:
        why = f"The report names generation {report.generation}, the session has {seat.generation}."
    elif arms[0].state is BlockState.DONE and arms[0].result is not None:
        if {arm.id: arm.result for arm in arms} == report.results:
            return _answer(seat, race_id, arms)
        why, differs = "Another report was accepted for this race.", True
    elif report.results.keys() != {arm.id for arm in arms}:
        why = "The report does not hold a result for each arm of the race, and no other."
    elif not _accept(work, tuning, seat, arms, report, payload, now):
        why = f"The race was given up: {arms[0].note or seat.reason}"
    else:
        work.reach(FaultPoint.RESULT_ACCEPTED)
        return _answer(seat, race_id, arms)
    work.reach(FaultPoint.RESULT_QUARANTINED)
    for block_id, result in report.results.items():
        generation = max(-1, min(report.generation, 2**31 - 1))
        work.blocks.quarantine(session_id, block_id, agent_id, generation, result, payload, why, now)
    return Quarantined(why, differs)


def _refuse_oversized(session_id: str, race_id: str, report: RaceReport) -> None:
    """Raise InvalidResult for more than any race has: setting it aside would keep other writers waiting for long."""
    if len(report.results) > _MOST_ARMS:
        raise InvalidResult(
            f"The report holds {len(report.results)} results; no race has over {_MOST_ARMS} arms."
        )
    if any(len(name) > _MOST_ID_CHARS for name in (session_id, race_id, *report.results)):
        raise InvalidResult(f"The report names a block, race or session by over {_MOST_ID_CHARS} characters.")


def refuse_implausible(result: BlockResult) -> None:
    """Raise InvalidResult for numbers that no measurement gives, and that would poison the statistics."""
    times = (*result.step_time_s, *result.per_rank_step_time_s)
    if any(not 0 <= seconds <= _MAX_STEP_S for seconds in times):
        raise InvalidResult(f"A step's time lies outside 0 … {_MAX_STEP_S:g} s.")
    if result.segments and (
        any(steps < 0 for steps in result.segments) or sum(result.segments) != len(result.step_time_s)
    ):
        raise InvalidResult("segments do not add up to the timed steps.")
    amounts = {
        "samples_per_step": result.samples_per_step,
        "samples": result.samples,
        "wall_s": result.wall_s,
        "steps": result.steps,
        "excluded_steps": result.excluded_steps,
        "warmup_steps": result.warmup_steps,
        "peak_memory_bytes": result.peak_memory_bytes,
        "switch_s": result.switch_s,
    }
    for name, amount in amounts.items():
        if not 0 <= amount <= _MAX_COUNT:
            raise InvalidResult(f"{name} lies outside 0 … {_MAX_COUNT:g}.")
    losses = chain(result.losses, result.loss_at_start, *result.loss_checks)
    if any(not math.isfinite(loss) or abs(loss) > _MAX_COUNT for loss in losses):
        raise InvalidResult(f"A loss lies outside ±{_MAX_COUNT:g}: the runtime reports that as `diverged`.")


def _known_answer(work: UnitOfWork, session: Session) -> NextReply | None:
    if session.state is SessionState.ASSEMBLING:
        raise SessionNotRunning(f"Session {session.id} is still assembling.")
    if session.state is not SessionState.RUNNING:
        return NextReply(end_because=session.reason or "The session is over.")
    arms = work.blocks.issued_in(session.id)
    return NextReply(race=RacePlan(arms=tuple(arm.plan for arm in arms))) if arms else None


def _issue(work: UnitOfWork, session: Session, race: Race, now: datetime) -> RacePlan:
    job_id = session.job_id
    work.reach(FaultPoint.RACE_ISSUED)
    begins_stage = work.jobs.set_stage(job_id, race.stage)
    known, ordinal = work.trials.of_job(job_id), work.blocks.next_ordinal(session.id)
    catalogue = get_job(work, job_id).catalogue
    changed = issue_race(
        session, race, known, catalogue, ordinal, now, work.new_id, begins_stage=begins_stage
    )
    work.jobs.set_standing(job_id, changed.standing)
    for trial in changed.trials:
        work.trials.add(job_id, trial)
    for block in changed.blocks:
        work.blocks.issue(job_id, block)
    tell_changes(work, job_id, changed, now)
    return RacePlan(arms=tuple(block.plan for block in changed.blocks))


def _accept(
    work: UnitOfWork,
    tuning: Tuning,
    seat: Seat,
    arms: tuple[Block, ...],
    report: RaceReport,
    payload: str,
    now: datetime,
) -> bool:
    job_id = seat.job_id
    trials = work.trials.of_race(seat.session_id, arms[0].race)
    changed = accept_race(
        arms,
        report.results,
        trials,
        lambda: _list_baseline(work, job_id),
        lambda: (get_job(work, job_id).catalogue, work.trials.of_job(job_id)),
        now,
        tuning,
    )
    for block in changed.blocks:
        result = report.results[block.id]
        if not work.blocks.accept(block, seat.generation, result, block.summary, payload, now):
            return False
    observe_blocks(work, seat.created_at, changed.blocks)
    tell_changes(work, job_id, changed, now)
    return True


def _list_baseline(work: UnitOfWork, job_id: str) -> list[BlockResult]:
    """What the script as it stands measured in the whole job."""
    return [b.result for b in work.blocks.of_job(job_id) if b.result and not b.plan.overrides]


def _answer(seat: Seat, race_id: str, arms: tuple[Block, ...]) -> Accepted:
    reply = RaceAccepted(race_id=race_id, sentence=f"Race {arms[0].race} counts.")
    return Accepted(reply, seat.job_id if seat.state is SessionState.RUNNING else None)
