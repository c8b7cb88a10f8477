"""The reaper: gives up sessions whose leases ran out, in time for which this server ran.

No deadline is stored and no time of day is compared. The reaper counts seconds of its own, takes at every look the
places that beats came from since the last one (`Leases`), and gives a session up when none came from one of them for
too long. What it did not see, because the process was stopped or the server had not started, is no one's silence. An
agent is heard whatever becomes of what its beat brings: a database that takes no writes makes no agent silent. The
reaper loses a session only if nothing has changed since its look.
"""

import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from advisor.errors import LostRace, UnreadableRecord
from advisor.protocol.measured.messages import MemberState
from advisor.protocol.measured.trials import Session, SessionState
from advisor.services.ending import abandon_session, lose_session, settle_if_gone
from advisor.services.measuring.leases import Leases, Place
from advisor.services.timers import Pace, Timers
from advisor.storage import Database, UnitOfWork
from advisor.storage.repositories.members import Lease


class AwakeClock:
    """Counts seconds between moments at which something succeeded; of a long gap it counts `longest_s` only."""

    def __init__(self, elapsed: Callable[[], float], longest_s: float) -> None:
        """`elapsed` is a monotonic clock of seconds."""
        self._elapsed, self._longest_s = elapsed, longest_s
        self._last_s = elapsed()
        self._awake_s = 0.0

    def advance(self) -> float:
        """Return the seconds counted up to now."""
        now_s = self._elapsed()
        self._awake_s += min(max(0.0, now_s - self._last_s), self._longest_s)
        self._last_s = now_s
        return self._awake_s


_REST_SHARE = 0.02
"""Where leases are stretched, the reaper rests for this share of what they are longer: a look at thousands of members
holds up their beats."""
_CROWD_S = 60.0
"""Agents are told their pace by a count of before: leases are as long as those of a crowd that went this long ago."""

_log = logging.getLogger(__name__)


@dataclass
class _Sight:
    """A live session as it was seen last; each of its parts may stay as it is until a moment of its own."""

    job_id: str
    state: str
    until_s: float
    members: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Agent -> the word of its state, and until when it may say nothing."""

    def is_late(self, now_s: float) -> bool:
        """Whether the session's state has lasted too long."""
        return now_s > self.until_s

    def find_silent(self, now_s: float) -> frozenset[str]:
        """Return the agents that have said nothing for too long."""
        return frozenset(agent for agent, (_, until_s) in self.members.items() if now_s > until_s)


class Reaper:
    """Watches the live sessions of a database and their members; one that starts anew begins to watch anew."""

    def __init__(self, database: Database, timers: Timers, clock: AwakeClock, leases: Leases) -> None:
        self._database, self._timers, self._clock, self._leases = database, timers, clock, leases
        self._sights: dict[str, _Sight] = {}
        self._beaten: set[Place] = set()
        self._is_new = True
        self._rests_until_s = 0.0
        self._crowd = 0, 0.0
        """The most agents that held sessions lately, and when that was so last."""

    def look(self, now: datetime) -> int:
        """Give up every session with a silent member, or whose state lasted too long; return how many.

        `now` is only written into the story of the jobs.
        """
        awake_s = self._clock.advance()
        if awake_s < self._rests_until_s:
            return 0
        self._beaten |= self._leases.take_beaten()
        with self._database.read() as work:
            self._watch(work, awake_s)
        lost = 0
        for session_id, sight in self._sights.items():
            is_late, silent = sight.is_late(awake_s), sight.find_silent(awake_s)
            if not is_late and not silent:
                continue
            try:
                with self._database.begin() as work:
                    lost += self._lose_if_late(work, session_id, sight, silent, now, is_late=is_late)
            except LostRace:
                continue
            except UnreadableRecord as error:
                reason = f"{error.sentence} {error.hint}"
                _log.warning("Session %s was given up unread. %s", session_id, reason)
                with suppress(LostRace), self._database.begin() as work:
                    lost += abandon_session(work, session_id, sight.job_id, reason, now)
        return lost

    def _watch(self, work: UnitOfWork, awake_s: float) -> None:
        """Note what is there, and how long it may stay so."""
        found = work.members.leases()
        members = sum(lease.agent_id is not None for lease in found)
        most, at_s = self._crowd
        if members >= most or awake_s - at_s > _CROWD_S:
            self._crowd = members, awake_s
        pace = self._timers.pace(self._crowd[0])
        self._rests_until_s = awake_s + _REST_SHARE * (pace.lease_s - self._timers.lease_s)
        least_s = self._choose_least_s(work)
        sights: dict[str, _Sight] = {}
        for lease in found:
            known = self._sights.get(lease.session_id)
            sight = sights.get(lease.session_id)
            if sight is None:
                until_s = known.until_s if known is not None and known.state == lease.state else None
                if until_s is None:
                    until_s = awake_s + max(least_s, self._limit_state_s(work, lease, pace))
                sight = sights[lease.session_id] = _Sight(lease.job_id, lease.state, until_s)
            if lease.agent_id is None:
                continue
            before = known.members.get(lease.agent_id) if known is not None else None
            is_heard = (lease.session_id, lease.agent_id) in self._beaten
            if before is not None and before[0] == lease.member and not is_heard:
                sight.members[lease.agent_id] = before
            elif before is not None or is_heard or not lease.is_awaited:
                limit_s = self._limit_lease_s(lease, pace)
                sight.members[lease.agent_id] = lease.member, awake_s + max(least_s, limit_s)
        self._sights, self._beaten, self._is_new = sights, set(), False

    def _choose_least_s(self, work: UnitOfWork) -> float:
        """Agents could not renew their leases while no server ran: each lease that is there at the start gets new time.

        This server does not know what pace the last one told the agents; it was none for more agents than there are.
        """
        if not self._is_new:
            return 0.0
        return max(self._timers.restart_s, 2 * self._timers.pace(work.agents.count()).lease_s)

    def _limit_lease_s(self, lease: Lease, pace: Pace) -> float:
        # A node that is gone renews nothing: it only has the grace to say how it ended.
        return self._timers.grace_s + (0.0 if lease.member == MemberState.GONE else pace.lease_s)

    def _limit_state_s(self, work: UnitOfWork, lease: Lease, pace: Pace) -> float:
        if lease.state == SessionState.ASSEMBLING:
            return self._timers.assemble_s
        if lease.state == SessionState.RUNNING:
            return _read_session_timeout(work, lease.job_id) + self._timers.overtime_s
        # Its agents hear of the end at their next beat.
        return self._timers.ending_s + pace.beat_s - self._timers.beat_s

    def _lose_if_late(
        self,
        work: UnitOfWork,
        session_id: str,
        sight: _Sight,
        silent: Collection[str],
        now: datetime,
        *,
        is_late: bool,
    ) -> bool:
        # The job is locked: from here on nothing of the session changes, and who has beaten since the look is heard.
        if work.jobs.lock(sight.job_id) is None:
            return False
        session = work.sessions.get(session_id)
        if session is None or session.state.is_final or settle_if_gone(work, session_id, now, patient=False):
            return False
        names = [
            member.agent
            for member in work.members.of_session(session_id)
            if member.state is not MemberState.GONE
            and member.agent_id in silent
            and not self._leases.has_beaten((session_id, member.agent_id))
        ]
        if not names and not (is_late and session.state == sight.state):
            return False
        lose_session(work, session, _explain(work, session, names), now)
        return True


def _read_session_timeout(work: UnitOfWork, job_id: str) -> float:
    with suppress(UnreadableRecord):
        if (job := work.jobs.get(job_id)) is not None:
            return job.spec.session_timeout_s
    return 0.0


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
