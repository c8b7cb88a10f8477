"""The reaper: gives up sessions whose leases ran out. A restarted server gives every live lease new time first."""

import logging
from datetime import datetime, timedelta

from advisor.errors import LostRace, UnreadableRecord
from advisor.protocol.messages import MemberState
from advisor.protocol.trials import Session, SessionState
from advisor.services.ending import lose_session, settle_if_gone
from advisor.services.tuning import Timers
from advisor.storage import Database, UnitOfWork

_log = logging.getLogger(__name__)


def extend_leases(database: Database, now: datetime, timers: Timers) -> None:
    """Give every live lease time: the agents could not renew them while the server was down."""
    until = now + timedelta(seconds=max(timers.restart_s, 2 * timers.lease_s))
    with database.begin() as work:
        work.members.extend(until)
        work.sessions.extend(until)


def expire_leases(database: Database, now: datetime, timers: Timers) -> int:
    """Give up every session with a silent member, or whose state lasted too long; return how many."""
    silent_since = now - timedelta(seconds=timers.grace_s)
    with database.read() as work:
        suspects = work.sessions.overdue(now, silent_since)
    lost = 0
    for suspect in suspects:
        try:
            with database.begin() as work:
                lost += _lose_if_overdue(work, suspect, now, silent_since)
        except LostRace:
            continue
        except UnreadableRecord as error:
            _log.warning("Session %s cannot be given up. %s %s", suspect.id, error.sentence, error.hint)
    return lost


def _lose_if_overdue(work: UnitOfWork, suspect: Session, now: datetime, silent_since: datetime) -> bool:
    # A beat may have come since: look again, now that the job is locked.
    work.jobs.lock(suspect.job_id)
    current = next(
        (found for found in work.sessions.overdue(now, silent_since) if found.id == suspect.id), None
    )
    if current is None or settle_if_gone(work, current.id, now, patient=False):
        return False
    silent = [
        member.agent
        for member in work.members.of_session(current.id)
        if member.state is not MemberState.GONE and member.lease_until < silent_since
    ]
    due_at = work.sessions.due_at(current.id)
    if not silent and (due_at is None or due_at >= now):
        return False
    lose_session(work, current, _explain(work, current, silent), now)
    return True


def _explain(work: UnitOfWork, session: Session, silent: list[str]) -> str:
    if silent:
        return f"No sign of life from {', '.join(silent)}. Look at the agent's log on that node."
    if session.state is SessionState.ASSEMBLING:
        missing = [
            member.agent
            for member in work.members.of_session(session.id)
            if member.state is MemberState.PREPARING
        ]
        return f"The gang did not become complete in time; still missing: {', '.join(missing) or 'a rendezvous'}."
    if session.state is SessionState.ENDING:
        return "Some node did not report in time that its training processes are gone."
    return "The session lasted longer than session_timeout_s, and no agent ended it."
