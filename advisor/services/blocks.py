"""Blocks: what is measured next, and results that are accepted exactly once."""

import hashlib
import math
from dataclasses import dataclass
from datetime import datetime

from advisor.errors import InvalidResult, LostRace, SessionNotRunning
from advisor.protocol.jobs import Stage
from advisor.protocol.messages import BlockReport, NextReply
from advisor.protocol.trials import (
    Block,
    BlockPlan,
    BlockResult,
    BlockState,
    Outcome,
    Purpose,
    Session,
    SessionState,
    Trial,
    TrialState,
)
from advisor.protocol.views import BlockAccepted, EventKind
from advisor.services.ending import end_session
from advisor.services.jobs import get_job
from advisor.services.sessions import find_leader_place
from advisor.services.telemetry import observe_block
from advisor.services.thinking import Thought, think
from advisor.services.tuning import Timers, Tuning
from advisor.storage import Database, UnitOfWork
from advisor.tuning.decisions import EndSession, Measure, TrialDraft, Wait

_ATTEMPTS = 8
_PATIENT = 3
"""Attempts for which the job has to be the very one that the planner saw; other gangs keep changing it."""
_MAX_STEP_S = 86_400.0
_MAX_COUNT = 1e15


@dataclass(frozen=True)
class Quarantined:
    """A result that was kept but does not count."""

    sentence: str
    differs: bool
    """Another result had been accepted for the same block."""


def next_block(
    database: Database,
    tuning: Tuning,
    session_id: str,
    agent_id: str,
    generation: int,
    now: datetime,
    timers: Timers,
) -> NextReply:
    """Return the block that the session is to measure now, or why the session is over.

    While a block is being measured the same one is returned. Raises StaleSession, Forbidden, SessionNotRunning, and
    LostRace when the job keeps changing while the planner thinks.
    """
    for attempt in range(_ATTEMPTS):
        with database.read() as work:
            session = find_leader_place(work, session_id, agent_id, generation)
            if (answer := _known_answer(work, session)) is not None:
                return answer
        thought = think(database, tuning, session.job_id, now, session_id, timers)
        if isinstance(thought.decision, Wait):
            raise SessionNotRunning(thought.decision.because)
        with database.begin() as work:
            session = find_leader_place(work, session_id, agent_id, generation)
            if (answer := _known_answer(work, session)) is not None:
                return answer
            if not _still_holds(work, thought, patient=attempt < _PATIENT):
                continue
            if thought.late:
                work.events.append(session.job_id, EventKind.JOB, thought.late, now, session_id=session_id)
            if not isinstance(thought.decision, Measure):
                end_session(work, session, thought.decision.because, now, timers)
                return NextReply(end_because=thought.decision.because)
            return NextReply(plan=_issue(work, session, thought.decision, now))
    raise LostRace("The job changed again and again while the next block was planned.")


def report_block(
    work: UnitOfWork,
    tuning: Tuning,
    session_id: str,
    block_id: str,
    agent_id: str,
    report: BlockReport,
    now: datetime,
) -> BlockAccepted | Quarantined:
    """Accept a block's result, exactly once; the same report gets the same answer again.

    A result that comes too late, for another generation, or that differs from the accepted one is kept in
    quarantine: nothing that an agent measured is lost, and nothing is counted twice.
    Raises InvalidResult for numbers that no measurement gives; nothing is kept then.
    """
    refuse_implausible(report.result)
    payload = hashlib.sha256(report.result.model_dump_json().encode()).hexdigest()
    session = work.sessions.get(session_id)
    if session is not None:
        work.jobs.lock(session.job_id)
    block = work.blocks.get(block_id)
    member = work.members.get(session_id, agent_id)
    why, differs = "", False
    if session is None or block is None or member is None or block.session_id != session_id:
        why = f"Block {block_id} is no block of a session that this agent holds."
    elif member.node_rank != 0:
        why = "Only the agent of node rank 0 reports blocks."
    elif report.generation != session.generation:
        why = f"The report names generation {report.generation}, the session has {session.generation}."
    elif (accepted := work.blocks.accepted_sha256(block_id)) is not None:
        if accepted == payload:
            return _answer(block)
        why, differs = "Another result was accepted for this block.", True
    elif not work.blocks.accept(
        block, session.generation, report.result, tuning.summarise(report.result), payload, now
    ):
        why = f"The block was given up: {block.note or session.reason}"
    else:
        _conclude(work, tuning, session, block, report.result, now)
        return _answer(block)
    work.blocks.quarantine(
        session_id, block_id, agent_id, _storable(report.generation), report.result, payload, why, now
    )
    return Quarantined(why, differs)


def refuse_implausible(result: BlockResult) -> None:
    """Raise InvalidResult for numbers that no measurement gives, and that would poison the statistics."""
    times = (*result.step_time_s, *result.per_rank_step_time_s)
    if any(not 0 <= seconds <= _MAX_STEP_S for seconds in times):
        raise InvalidResult(f"A step's time lies outside 0 … {_MAX_STEP_S:g} s.")
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
    if any(not math.isfinite(loss) or abs(loss) > _MAX_COUNT for loss in result.losses):
        raise InvalidResult(f"A loss lies outside ±{_MAX_COUNT:g}: the runtime reports that as `diverged`.")


def _known_answer(work: UnitOfWork, session: Session) -> NextReply | None:
    if session.state is SessionState.ASSEMBLING:
        raise SessionNotRunning(f"Session {session.id} is still assembling.")
    if session.state is not SessionState.RUNNING:
        return NextReply(end_because=session.reason or "The session is over.")
    block = work.blocks.issued_in(session.id)
    return NextReply(plan=block.plan) if block is not None else None


def _still_holds(work: UnitOfWork, thought: Thought, *, patient: bool) -> bool:
    """Whether a decision may be carried out: the job has not changed since, or only by what does not touch it.

    In the search of several gangs, results that came meanwhile would only have refined the suggestion, as long as
    no other gang has taken the same strategy up.
    """
    job = get_job(work, thought.job.id)
    if job.version == thought.job.version:
        return True
    decision = thought.decision
    if patient or job.state.is_final or job.spec.gangs == 1:
        return False
    if not isinstance(decision, Measure):
        return isinstance(decision, EndSession)
    if decision.stage is not Stage.SEARCH or job.stage is not Stage.SEARCH:
        return False
    trial = decision.trial
    if isinstance(trial, TrialDraft):
        known = work.trials.of_job(job.id)
        return all(dict(other.changes) != dict(trial.changes) for other in known)
    current = work.trials.get(job.id, trial)
    in_hand = {block.trial_number for block in work.blocks.of_job(job.id) if block.state is BlockState.ISSUED}
    return current is not None and (
        current.purpose is Purpose.BASELINE or (current.state is TrialState.OPEN and trial not in in_hand)
    )


def _issue(work: UnitOfWork, session: Session, measure: Measure, now: datetime) -> BlockPlan:
    job_id = session.job_id
    number = _number_of(work, job_id, measure.trial, now)
    block_id = work.new_id()
    ordinal = work.blocks.next_ordinal(session.id)
    plan = BlockPlan(
        block_id=block_id,
        trial_number=number,
        overrides=dict(measure.overrides),
        warmup_steps=measure.warmup_steps,
        min_steps=measure.min_steps,
        max_steps=measure.max_steps,
        target_s=measure.target_s,
        profile_steps=measure.profile_steps,
        give_up_s=measure.give_up_s,
        target_error=measure.target_error,
        calibrate=measure.calibrate,
    )
    work.blocks.issue(
        job_id,
        Block(
            id=block_id,
            session_id=session.id,
            trial_number=number,
            ordinal=ordinal,
            round=measure.round,
            state=BlockState.ISSUED,
            plan=plan,
            issued_at=now,
        ),
    )
    if work.jobs.set_stage(job_id, measure.stage):
        work.events.append(job_id, EventKind.JOB, f"The job is in its {measure.stage.value} stage.", now)
    work.events.append(
        job_id,
        EventKind.BLOCK,
        f"Block {ordinal} measures trial {number}: {measure.because}",
        now,
        trial_number=number,
        session_id=session.id,
    )
    return plan


def _number_of(work: UnitOfWork, job_id: str, trial: int | TrialDraft, now: datetime) -> int:
    if isinstance(trial, int):
        return trial
    number = work.trials.next_number(job_id)
    work.trials.add(
        job_id,
        Trial(
            number=number,
            purpose=trial.purpose,
            changes=dict(trial.changes),
            effect=trial.effect,
            because=trial.because,
            created_at=now,
        ),
    )
    work.events.append(
        job_id,
        EventKind.TRIAL,
        f"Trial {number} ({trial.purpose.value}): {trial.because}",
        now,
        trial_number=number,
    )
    return number


def _conclude(
    work: UnitOfWork, tuning: Tuning, session: Session, block: Block, result: BlockResult, now: datetime
) -> None:
    job_id, number = session.job_id, block.trial_number
    work.events.append(
        job_id,
        EventKind.BLOCK,
        f"Block {block.ordinal} of trial {number} was measured over {result.steps} steps.",
        now,
        trial_number=number,
        session_id=session.id,
    )
    observe_block(work, session, block.model_copy(update={"finished_at": now}))
    trial = work.trials.get(job_id, number)
    if trial is None or trial.purpose is Purpose.BASELINE:
        return
    verdict = tuning.judge(trial, result, _had_usable_block(work, job_id, block))
    if verdict is None or (trial.purpose is not Purpose.SEARCH and verdict[0] is Outcome.FINISHED):
        return
    outcome, reason = verdict
    if work.trials.close(job_id, number, outcome, reason, now):
        sentence = f"Trial {number} ended as {outcome.value}: {reason}"
        work.events.append(job_id, EventKind.TRIAL, sentence, now, trial_number=number, session_id=session.id)


def _had_usable_block(work: UnitOfWork, job_id: str, block: Block) -> bool:
    return any(
        other.trial_number == block.trial_number
        and other.id != block.id
        and other.state is BlockState.DONE
        and other.summary is not None
        and other.summary.steady_steps > 0
        for other in work.blocks.of_job(job_id)
    )


def _answer(block: Block) -> BlockAccepted:
    return BlockAccepted(
        block_id=block.id,
        trial_number=block.trial_number,
        sentence=f"Block {block.ordinal} of trial {block.trial_number} counts.",
    )


def _storable(generation: int) -> int:
    return max(-1, min(generation, 2**31 - 1))
