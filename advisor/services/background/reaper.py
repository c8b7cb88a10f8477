"""The reaper: gives up sessions whose leases ran out, in time for which this server ran and its database took writes.

No deadline is stored and no time of day is compared. Every beat counts a renewal up; the reaper remembers when, by its
own count of seconds, it first saw a number, and gives a session up when the number stays the same for too long. What
it did not see, because the process was stopped, the database was away or the server had not started, is no one's
silence. The server that leads looks; it loses a session only if nothing has changed since its look.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from advisor.errors import LostRace, UnreadableRecord
from advisor.protocol.measured.messages import MemberState
from advisor.protocol.measured.trials import Session, SessionState
from advisor.services.background.awake_clock import AwakeClock
from advisor.services.ending import abandon_session, lose_session, settle_if_gone
from advisor.services.timers import Pace, Timers
from advisor.storage import Transactions, UnitOfWork
from advisor.storage.repositories.members import Watched, WatchedSession, read_watched

_REST_SHARE = 0.02
"""Where leases are stretched, the reaper rests for this share of what they are longer: a look at thousands of members
holds up their beats."""
_CROWD_S = 60.0
"""Agents are told their pace by a count of before: leases are as long as those of a crowd that went this long ago."""

_log = logging.getLogger(__name__)


class _Sight:
    """A live session as it was seen last; each of its parts may stay as it is until a moment of its own."""

    __slots__ = "members", "session_id", "state", "state_until_s", "until_s"

    def __init__(
        self, session_id: str, state: SessionState, state_until_s: float, members: Mapping[Watched, float]
    ) -> None:
        """`members` are given with how long each may stay so."""
        self.session_id, self.members = session_id, members
        self.state, self.state_until_s = state, state_until_s
        self.until_s = min(state_until_s, *members.values()) if members else state_until_s

    def find_late(self, now_s: float) -> "_Late":
        """Return what has stayed as it is for too long."""
        return _Late(
            self.state if now_s > self.state_until_s else None,
            frozenset(member for member, until_s in self.members.items() if now_s > until_s),
        )


class _Late(NamedTuple):
    """What of a session has stayed as it is for too long."""

    state: SessionState | None
    members: frozenset[Watched]


class Reaper:
    """Watches the live sessions of a database and their members; one that starts anew begins to watch anew."""

    def __init__(self, database: Transactions, timers: Timers, clock: AwakeClock) -> None:
        self._database, self._timers, self._clock = database, timers, clock
        self._sights: dict[str, _Sight] = {}
        """By the line that told of it."""
        self._is_new = True
        self._rests_until_s = 0.0
        self._crowd = 0, 0.0
        """The most agents that held sessions lately, and when that was so last."""

    def look(self, now: datetime) -> int:
        """Give up every session with a silent member, or whose state lasted too long; return how many.

        `now` is only written into the story of the jobs. Raises Unavailable when the database takes no writes: time
        that ends like this is not counted, since no lease could be renewed in it.
        """
        if self._sights:
            # Another server that has written at this very moment is as good a proof.
            with suppress(LostRace), self._database.begin() as work:
                work.prove_writable()
        awake_s = self._clock.advance()
        if awake_s < self._rests_until_s:
            return 0
        with self._database.read() as work:
            self._watch(work, awake_s)
        lost = 0
        for sight in self._sights.values():
            if awake_s <= sight.until_s:
                continue
            session_id, late = sight.session_id, sight.find_late(awake_s)
            try:
                with self._database.begin() as work:
                    lost += _lose_if_late(work, session_id, late, now)
            except LostRace:
                continue
            except UnreadableRecord as error:
                reason = f"{error.sentence} {error.hint}"
                with suppress(LostRace), self._database.begin() as work:
                    lost += _abandon_if_late(work, session_id, late, reason, now)
        return lost

    def _watch(self, work: UnitOfWork, awake_s: float) -> None:
        """Note what is there, and how long it may stay so."""
        lines = work.members.watched()
        members = work.members.count_live() if lines else 0
        most, at_s = self._crowd
        if members >= most or awake_s - at_s > _CROWD_S:
            self._crowd = members, awake_s
        pace = self._timers.pace(self._crowd[0])
        self._rests_until_s = awake_s + _REST_SHARE * (pace.lease_s - self._timers.lease_s)
        least_s = self._choose_least_s(work)
        sights = {line: sight for line in lines if (sight := self._sights.get(line)) is not None}
        earlier = {sight.session_id: sight for line, sight in self._sights.items() if line not in sights}
        for line in lines:
            if line in sights:
                continue
            session_id, job_id, state, seen = read_watched(line)
            known = earlier.get(session_id)
            if known is None or known.state is not state:
                until_s = awake_s + max(least_s, self._limit_state_s(work, job_id, state, pace))
            else:
                until_s = known.state_until_s
            before = known.members if known is not None else {}
            leases = {
                member: before.get(member, awake_s + max(least_s, self._limit_lease_s(member, pace)))
                for member in seen
            }
            sights[line] = _Sight(session_id, state, until_s, leases)
        self._sights, self._is_new = sights, False

    def _choose_least_s(self, work: UnitOfWork) -> float:
        """Agents could not renew their leases while no server ran: what is there at the start gets new time.

        Nobody knows any more what pace they were told; it was none for more agents than there are.
        """
        if not self._is_new:
            return 0.0
        return max(self._timers.restart_s, 2 * self._timers.pace(work.agents.count()).lease_s)

    def _limit_lease_s(self, member: Watched, pace: Pace) -> float:
        # A node that is gone renews nothing: it only has the grace to say how it ended.
        return self._timers.grace_s + (0.0 if member.state == MemberState.GONE else pace.lease_s)

    def _limit_state_s(self, work: UnitOfWork, job_id: str, state: SessionState, pace: Pace) -> float:
        if state is SessionState.ASSEMBLING:
            return self._timers.assemble_s
        if state is SessionState.RUNNING:
            return _read_session_timeout(work, job_id) + self._timers.overtime_s
        # Its agents hear of the end at their next beat.
        return self._timers.ending_s + pace.beat_s - self._timers.beat_s


def _read_session_timeout(work: UnitOfWork, job_id: str) -> float:
    with suppress(UnreadableRecord):
        if (job := work.jobs.get(job_id)) is not None:
            return job.spec.session_timeout_s
    return 0.0


def _abandon_if_late(work: UnitOfWork, session_id: str, late: _Late, reason: str, now: datetime) -> bool:
    """Give up a session of which something cannot be read here: its agents are free, and its job waits."""
    session = _find_watched(work, session_id)
    if session is None or not work.jobs.hold(session.job_id):
        return False
    # As in `_lose_if_late`, nothing may have changed since the look.
    session = _find_watched(work, session_id)
    if session is None or (session.state is not late.state and late.members.isdisjoint(session.members)):
        return False
    _log.warning("Session %s was given up unread. %s", session_id, reason)
    abandon_session(work, session_id, session.job_id, reason, now)
    return True


def _find_watched(work: UnitOfWork, session_id: str) -> WatchedSession | None:
    watched = (read_watched(line) for line in work.members.watched())
    return next((session for session in watched if session.id == session_id), None)


def _lose_if_late(work: UnitOfWork, session_id: str, late: _Late, now: datetime) -> bool:
    session = work.sessions.get(session_id)
    # A beat may have come since: look again, now that the job is locked.
    if session is None or work.jobs.lock(session.job_id) is None:
        return False
    session = work.sessions.get(session_id) or session
    if session.state.is_final or settle_if_gone(work, session_id, now, patient=False):
        return False
    silent = [
        member.agent
        for member in work.members.of_session(session_id)
        if member.state is not MemberState.GONE
        and Watched(member.agent_id, member.renewals, member.state) in late.members
    ]
    if not silent and session.state is not late.state:
        return False
    lose_session(work, session, _explain(work, session, silent), now)
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
