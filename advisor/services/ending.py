"""How sessions end: asked to, by themselves, or lost; what becomes of the block in flight, its trial and the job."""

from datetime import datetime
from functools import partial

from advisor.course.races import Changed, as_clause, end_race, give_up_race
from advisor.course.sessions import conclude_session
from advisor.protocol.asked.jobs import JobState
from advisor.protocol.measured.messages import LAUNCH_FAILED, MemberState
from advisor.protocol.measured.trials import (
    BlockState,
    JobHistory,
    Outcome,
    Session,
    SessionState,
    TrialState,
)
from advisor.protocol.views import EventKind
from advisor.storage import UnitOfWork
from advisor.storage.fault_points import FaultPoint
from advisor.storage.repositories.members import Member


def end_session(
    work: UnitOfWork,
    session: Session,
    reason: str,
    now: datetime,
    *,
    cancelled: bool = False,
    outcome: Outcome | None = Outcome.FINISHED,
) -> None:
    """Ask a session's gang to end; the agents learn it from the answer to their next beat.

    A cancelled session gives its block up at once: a result that arrives later was too late. Otherwise a result is
    still accepted until every rank is gone. An `outcome` of None leaves it to what the agents report.
    """
    if cancelled:
        outcome = Outcome.CANCELLED
        _void(work, session, give_up_race(work.blocks.issued_in(session.id), reason, now), now)
    if work.sessions.end(session.id, session.generation, outcome, reason):
        work.reach(FaultPoint.SESSION_ENDING)
        _tell(work, session, f"Session {session.generation} is ending: {as_clause(reason)}", now)
    elif cancelled and session.state is SessionState.ENDING:
        _tell(work, session, f"Session {session.generation} was ending already.", now)


def settle_if_gone(work: UnitOfWork, session_id: str, now: datetime, *, patient: bool = True) -> bool:
    """End a session for good once every rank of every node is gone; return whether that is so.

    A beat can say that a node's ranks are gone before its end report says how they ended: with `patient`, a session
    whose outcome is not known yet waits for those reports.
    """
    session = work.sessions.get(session_id)
    if session is None or session.state.is_final:
        return False
    members = work.members.of_session(session_id)
    if any(member.state is not MemberState.GONE for member in members):
        return False
    if patient and session.outcome is None and any(member.outcome is None for member in members):
        return False
    _settle(work, session, members, SessionState.ENDED, session.reason, now)
    return True


def lose_session(work: UnitOfWork, session: Session, reason: str, now: datetime) -> None:
    """Give a session up: its gang is released, and whatever it still sends is stale."""
    _settle(work, session, work.members.of_session(session.id), SessionState.LOST, reason, now)


def abandon_session(work: UnitOfWork, session_id: str, job_id: str, reason: str, now: datetime) -> bool:
    """Give a live session up without reading anything of it or of its job, some of which cannot be read.

    Its gang is released. Returns whether it was live.
    """
    if not work.jobs.hold(job_id):
        return False
    generation = work.sessions.generation_of(session_id)
    if not work.sessions.close(
        session_id, generation, SessionState.LOST, Outcome.LOST, reason, log_tail="", total_steps=0, now=now
    ):
        return False
    work.members.release(session_id)
    work.call_scheduler()
    work.blocks.void_all(session_id, f"Its session was lost: {as_clause(reason)}", now)
    sentence = f"Session {generation} was lost: {as_clause(reason)}"
    work.events.append(job_id, EventKind.SESSION, sentence, now, session_id=session_id)
    cancel_if_gone(work, job_id, now)
    return True


def cancel_if_gone(
    work: UnitOfWork, job_id: str, now: datetime, since: tuple[JobState, ...] = (JobState.CANCELLING,)
) -> None:
    """End a job on request as soon as it holds no session any more; nothing of it is read."""
    if work.sessions.is_holding(job_id) or not work.jobs.move(
        job_id, JobState.CANCELLED, "Cancelled on request.", since=since, now=now
    ):
        return
    close_trials(work, job_id, now)
    work.events.append(job_id, EventKind.JOB, "The job was cancelled.", now)


def finish_trials(work: UnitOfWork, job_id: str, now: datetime) -> None:
    """Close what is still open when a job finishes: as finished where it was measured."""
    measured = {block.trial_number for block in work.blocks.of_job(job_id) if block.state is BlockState.DONE}
    for trial in work.trials.of_job(job_id):
        if trial.state is TrialState.OPEN and trial.number in measured:
            work.trials.close(job_id, trial.number, Outcome.FINISHED, "Measured until the job ended.", now)
    close_trials(work, job_id, now)


def close_trials(work: UnitOfWork, job_id: str, now: datetime) -> None:
    """Close what is still open when a job ends before it has finished."""
    work.trials.close_all(job_id, Outcome.CANCELLED, "The job ended before this trial did.", now)


def _settle(
    work: UnitOfWork,
    session: Session,
    members: list[Member],
    state: SessionState,
    reason: str,
    now: datetime,
) -> None:
    trouble = work.sessions.trouble_of(session.id)
    conclude = partial(conclude_session, session, members, state, reason, now)
    ended = conclude(in_trouble=bool(trouble))
    if trouble == LAUNCH_FAILED and len(members) > 1 and ended.outcome is not Outcome.CRASHED:
        # One node's launch failed for what happened to another one.
        work.sessions.forget_trouble(session.id)
        trouble, ended = None, conclude()
    in_trouble = bool(trouble)
    outcome = ended.outcome or Outcome.LOST
    if not work.sessions.close(
        ended.id,
        ended.generation,
        state,
        outcome,
        ended.reason,
        log_tail=ended.log_tail,
        total_steps=ended.total_steps,
        now=now,
    ):
        return
    work.reach(FaultPoint.SESSION_LOST if state is SessionState.LOST else FaultPoint.SESSION_ENDED)
    work.members.release(ended.id)
    work.call_scheduler()
    arms = work.blocks.issued_in(ended.id)
    history = partial(_read_history, work, ended.job_id)
    _void(work, ended, end_race(ended, arms, history, now, in_trouble=in_trouble), now)
    verb = "was lost" if state is SessionState.LOST else f"ended ({outcome.value})"
    _tell(work, ended, f"Session {ended.generation} {verb}: {as_clause(ended.reason)}", now)
    cancel_if_gone(work, ended.job_id, now)


def _read_history(work: UnitOfWork, job_id: str) -> JobHistory:
    return JobHistory(
        trials=work.trials.of_job(job_id),
        blocks=work.blocks.of_job(job_id),
        sessions=work.sessions.of_job(job_id),
    )


def _void(work: UnitOfWork, session: Session, changed: Changed, now: datetime) -> None:
    if all(work.blocks.void(block.id, block.note, now) for block in changed.blocks):
        tell_changes(work, session.job_id, changed, now)


def tell_changes(work: UnitOfWork, job_id: str, changed: Changed, now: datetime) -> None:
    """Close the trials that a transition closes, and write down what is told of it."""
    for closing in changed.closings:
        work.trials.close(
            job_id,
            closing.number,
            closing.outcome,
            closing.reason,
            now,
            log_tail=closing.log_tail,
            ran=closing.ran,
        )
    for each in (*changed.told, *(closing.told for closing in changed.closings)):
        work.events.append(
            job_id,
            each.kind,
            each.sentence,
            now,
            trial_number=each.trial_number,
            session_id=each.session_id,
            facts=each.facts,
        )


def _tell(work: UnitOfWork, session: Session, sentence: str, now: datetime) -> None:
    work.events.append(session.job_id, EventKind.SESSION, sentence, now, session_id=session.id)
