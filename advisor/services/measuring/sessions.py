"""Sessions as their agents see them: beats, the runtime's first words, trouble, and the end."""

from datetime import datetime

from advisor.errors import Forbidden, StaleSession
from advisor.protocol.measured.messages import (
    LAUNCH_FAILED,
    Beat,
    BeatReply,
    HelloReport,
    MemberState,
    SessionEnd,
    Trouble,
)
from advisor.protocol.measured.trials import Outcome, Session, SessionState
from advisor.protocol.training.workload import WorkloadFacts, list_changed_files
from advisor.protocol.views import EventKind
from advisor.services.ending import end_session, settle_if_gone
from advisor.services.jobs import get_job
from advisor.services.measuring.leases import make_reply
from advisor.services.measuring.telemetry import keep_samples
from advisor.services.timers import Pace
from advisor.storage import UnitOfWork
from advisor.storage.fault_points import FaultPoint
from advisor.storage.repositories.members import Member

_MAX_STEPS = 2**31 - 1
_MOST_NAMED = 3


def renew_session(
    work: UnitOfWork, session_id: str, agent_id: str, beat: Beat, now: datetime, pace: Pace
) -> BeatReply:
    """Keep what an agent's beat brings, and tell it where the session stands and when to beat again.

    Its lease is renewed in memory (`Leases`). News that were kept already, of a beat whose answer was lost, are not
    kept again.

    The gang launches when every member is ready and node rank 0 has offered a rendezvous. Raises StaleSession when
    the session is over, has another generation, or is not this agent's.
    """
    session, member = find_place(work, session_id, agent_id, beat.generation)
    if member.state is MemberState.GONE and beat.state is MemberState.GONE:
        return _reply(work, session, pace)
    if session.state.is_final or not work.members.renew(
        session_id, agent_id, beat.generation, beat.state, beat.news
    ):
        raise _stale(session)
    work.reach(FaultPoint.LEASE_RENEWED)
    if beat.news > member.news:
        if beat.log:
            work.logs.append(session.job_id, session_id, member.agent, beat.log)
        keep_samples(work, session, agent_id, beat.telemetry.samples, now)
    if beat.rendezvous and member.node_rank == 0:
        work.sessions.offer_rendezvous(session_id, beat.generation, beat.rendezvous)
    if session.state is SessionState.ASSEMBLING:
        _start_if_complete(work, session, now)
    if beat.state is MemberState.GONE:
        _leave(work, session, agent_id, None, "", now)
    if session.state is SessionState.ASSEMBLING or beat.state is MemberState.GONE:
        session = work.sessions.get(session_id) or session
    return _reply(work, session, pace)


def hear_hello(work: UnitOfWork, session_id: str, agent_id: str, report: HelloReport, now: datetime) -> None:
    """Keep what the runtime saw of the script; the first session's words stand, and those of each other command.

    A session of another script than theirs is ended: it would be held against the first one's measurements. Raises
    StaleSession.
    """
    session = find_leader_place(work, session_id, agent_id, report.generation)
    if session.state.is_final:
        raise _stale(session)
    if changed := _find_changed_files(work, session, report.facts):
        names = ", ".join(changed[:_MOST_NAMED]) + (", …" if len(changed) > _MOST_NAMED else "")
        sentence = (
            f"The script is another one than this job began with: {names} changed. Put back what it was and continue "
            "the job, or start another one: advisor tune --new."
        )
        _note_trouble(work, session, Trouble(code="script_changed", sentence=sentence), now)
        end_session(work, session, sentence, now, outcome=None)
        return
    # A session launched with cold changes does not show the script as it stands.
    if session.cold:
        work.sessions.learn(session.id, report.facts)
    elif work.jobs.learn(session.job_id, report.facts, report.baseline, report.refusals):
        work.reach(FaultPoint.SCRIPT_SEEN)
        sentence = _describe_facts(report.facts)
        work.events.append(session.job_id, EventKind.SESSION, sentence, now, session_id=session_id)


def _find_changed_files(work: UnitOfWork, session: Session, facts: WorkloadFacts) -> list[str]:
    """Files of the script that the first session of the same command ran in another version."""
    job = get_job(work, session.job_id)
    first = job.facts
    if any(knob.is_command and knob.name in session.cold for knob in job.spec.workload.own):
        alike = (one.facts for one in work.sessions.of_job(job.id) if one.cold == session.cold)
        first = next((one for one in alike if one is not None), None)
    return list_changed_files(first.sources, facts.sources) if first is not None else []


def _describe_facts(facts: WorkloadFacts) -> str:
    over = f" over {facts.backend}" if facts.backend else ""
    sentence = f"The script runs on {facts.world_size} rank{'s' if facts.world_size != 1 else ''}{over}"
    if not facts.gradient_bytes:
        return f"{sentence}; the runtime could not tell the bytes of its gradients."
    return f"{sentence}, with {facts.gradient_bytes / 2**20:.1f} MiB of gradients per step."


def hear_trouble(work: UnitOfWork, session_id: str, agent_id: str, trouble: Trouble, now: datetime) -> None:
    """End a session because of something that no strategy can change. Raises StaleSession."""
    session, _ = find_place(work, session_id, agent_id, None)
    if session.state.is_final:
        raise _stale(session)
    _note_trouble(work, session, trouble, now)
    end_session(work, session, trouble.sentence, now, outcome=None)


def leave_session(work: UnitOfWork, session_id: str, agent_id: str, end: SessionEnd, now: datetime) -> None:
    """Note that every rank of a node is gone; with the last node the session has ended.

    Repeating it changes nothing. Raises StaleSession.
    """
    session, member = find_place(work, session_id, agent_id, end.generation)
    if session.state.is_final:
        if session.state is SessionState.ENDED and member.outcome is not None:
            return
        raise _stale(session)
    if end.trouble is not None:
        _note_trouble(work, session, end.trouble, now)
    total_steps = max(0, min(end.total_steps, _MAX_STEPS))
    work.agents.see(agent_id, now)
    _leave(work, session, agent_id, end.outcome, end.reason, now, end.log_tail, total_steps)


def find_place(
    work: UnitOfWork, session_id: str, agent_id: str, generation: int | None
) -> tuple[Session, Member]:
    """Return the session and the agent's place in it; in a transaction that writes, the job is locked until its end.

    Raises StaleSession when there is none or the generation is another one (None: not asked).
    """
    if not work.is_read_only:
        work.jobs.lock_of(session_id)
    session = work.sessions.get(session_id)
    member = work.members.get(session_id, agent_id)
    if session is None or member is None:
        raise StaleSession(f"Session {session_id} is not this agent's.")
    if generation is not None and session.generation != generation:
        raise _stale(session)
    return session, member


def find_leader_place(work: UnitOfWork, session_id: str, agent_id: str, generation: int) -> Session:
    """Return the session, for the agent that speaks for its gang. Raises StaleSession and Forbidden."""
    session, member = find_place(work, session_id, agent_id, generation)
    if member.node_rank != 0:
        raise Forbidden(
            "Only the agent of node rank 0 speaks for its gang.", hint="This is a defect of the agent."
        )
    return session


def _stale(session: Session) -> StaleSession:
    if session.state.is_final:
        return StaleSession(f"Session {session.id} is {session.state.value}: {session.reason}")
    return StaleSession(f"Session {session.id} has generation {session.generation}, or was left already.")


def _reply(work: UnitOfWork, session: Session, pace: Pace) -> BeatReply:
    launch = session.state is SessionState.RUNNING
    return make_reply(session.state, work.sessions.rendezvous(session.id) if launch else None, pace)


def _start_if_complete(work: UnitOfWork, session: Session, now: datetime) -> None:
    if work.sessions.start(session.id, session.generation, now):
        work.reach(FaultPoint.SESSION_STARTED)
        sentence = f"Session {session.generation} runs on {', '.join(session.agents)}."
        work.events.append(session.job_id, EventKind.SESSION, sentence, now, session_id=session.id)


def _note_trouble(work: UnitOfWork, session: Session, trouble: Trouble, now: datetime) -> None:
    job = get_job(work, session.job_id)
    if trouble.code == LAUNCH_FAILED and job.facts is not None:
        # It was seen to train. A node whose command is silent cannot know, and how the session ended tells more.
        return
    if work.sessions.note_trouble(
        session.id, session.generation, trouble.code, trouble.sentence, trouble.fatal
    ):
        work.reach(FaultPoint.TROUBLE_NOTED)
        work.events.append(session.job_id, EventKind.SESSION, trouble.sentence, now, session_id=session.id)


def _leave(
    work: UnitOfWork,
    session: Session,
    agent_id: str,
    outcome: Outcome | None,
    reason: str,
    now: datetime,
    log_tail: str = "",
    total_steps: int = 0,
) -> None:
    work.members.leave(session.id, agent_id, outcome, reason, log_tail, total_steps, heard_at=now)
    current = work.sessions.get(session.id) or session
    trouble = work.sessions.trouble_of(session.id)
    ending = current.reason if trouble else reason or "A node's training processes are gone."
    end_session(work, current, ending, now, outcome=None)
    settle_if_gone(work, session.id, now)
