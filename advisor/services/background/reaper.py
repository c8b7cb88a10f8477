"""The reaper: gives up sessions whose leases ran out, in time for which this server ran and its database took writes.

No deadline is stored and no time of day is compared. Every beat counts a renewal up; the reaper remembers when, by its
own count of seconds, it first saw a number, and gives a session up when the number stays the same for too long. What
it did not see, because the process was stopped, the database was away or the server had not started, is no one's
silence. The server that leads looks; it loses a session only if nothing has changed since its look.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from advisor.errors import LostRace, UnreadableRecord
from advisor.protocol.measured.messages import MemberState
from advisor.protocol.measured.trials import Session, SessionState
from advisor.services.ending import abandon_session, lose_session, settle_if_gone
from advisor.services.tuning import Pace, Timers
from advisor.storage import Transactions, UnitOfWork
from advisor.storage.repositories.members import Watched

_REST_SHARE = 0.02
"""Where leases are stretched, the reaper rests for this share of what they are longer: a look at thousands of members
holds up their beats."""
_CROWD_S = 60.0
"""Agents are told their pace by a count of before: leases are as long as those of a crowd that went this long ago."""

_log = logging.getLogger(__name__)


class AwakeClock:
    """Counts seconds between moments at which something succeeded; of a long gap it counts `longest_s` only."""

    def __init__(self, elapsed: Callable[[], float], longest_s: float) -> None:
        """`elapsed` is a clock of seconds that nobody sets."""
        self._elapsed, self._longest_s = elapsed, longest_s
        self._last_s = elapsed()
        self._awake_s = 0.0

    def advance(self) -> float:
        """Return the seconds counted up to now."""
        now_s = self._elapsed()
        self._awake_s += min(max(0.0, now_s - self._last_s), self._longest_s)
        self._last_s = now_s
        return self._awake_s


@dataclass(frozen=True, slots=True)
class _Sight:
    """Something that may not stay as it is for ever, and since when it was seen like this."""

    seen: SessionState | Watched
    since_s: float
    limit_s: float


class Reaper:
    """Watches the live sessions of a database and their members; one that starts anew begins to watch anew."""

    def __init__(self, database: Transactions, timers: Timers, clock: AwakeClock) -> None:
        self._database, self._timers, self._clock = database, timers, clock
        self._sights: dict[tuple[str, str], _Sight] = {}
        """Session and agent, or a session and "" for its state -> how it was seen last."""
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
        late = {key: sight for key, sight in self._sights.items() if awake_s - sight.since_s > sight.limit_s}
        lost = 0
        for session_id in dict.fromkeys(session_id for session_id, _ in late):
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
        """Note what is there, since when it is like this, and how long it may stay so."""
        found: dict[tuple[str, str], _Sight] = {}
        members = work.members.count_live()
        most, at_s = self._crowd
        if members >= most or awake_s - at_s > _CROWD_S:
            self._crowd = members, awake_s
        pace = self._timers.pace(self._crowd[0])
        self._rests_until_s = awake_s + _REST_SHARE * (pace.lease_s - self._timers.lease_s)
        least_s = self._choose_least_s(work)
        for session_id, job_id, state in work.sessions.live_states():
            key = session_id, ""
            known = self._sights.get(key)
            found[key] = (
                known
                if known and known.seen is state
                else _Sight(state, awake_s, max(least_s, self._limit_state_s(work, job_id, state, pace)))
            )
        for member in work.members.watched():
            key = member.session_id, member.agent_id
            known = self._sights.get(key)
            if known is None or known.seen != member:
                # A node that is gone renews nothing: it only has the grace to say how it ended.
                lease_s = 0.0 if member.state == MemberState.GONE else pace.lease_s
                known = _Sight(member, awake_s, max(least_s, lease_s + self._timers.grace_s))
            found[key] = known
        self._sights, self._is_new = found, False

    def _choose_least_s(self, work: UnitOfWork) -> float:
        """Agents could not renew their leases while no server ran: what is there at the start gets new time.

        Nobody knows any more what pace they were told; it was none for more agents than there are.
        """
        if not self._is_new:
            return 0.0
        return max(self._timers.restart_s, 2 * self._timers.pace(work.agents.count()).lease_s)

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


def _abandon_if_late(
    work: UnitOfWork, session_id: str, late: Mapping[tuple[str, str], _Sight], reason: str, now: datetime
) -> bool:
    """Give up a session of which something cannot be read here: its agents are free, and its job waits."""
    job_ids = {live_id: job_id for live_id, job_id, _ in work.sessions.live_states()}
    if session_id not in job_ids or not work.jobs.hold(job_ids[session_id]):
        return False
    # As in `_lose_if_late`, nothing may have changed since the look.
    states = {live_id: state for live_id, _, state in work.sessions.live_states()}
    lasted = late.get((session_id, ""))
    is_late = lasted is not None and lasted.seen is states.get(session_id)
    for member in work.members.watched():
        sight = late.get((session_id, member.agent_id))
        is_late |= member.session_id == session_id and sight is not None and sight.seen == member
    if is_late:
        _log.warning("Session %s was given up unread. %s", session_id, reason)
        abandon_session(work, session_id, job_ids[session_id], reason, now)
    return is_late


def _lose_if_late(
    work: UnitOfWork, session_id: str, late: Mapping[tuple[str, str], _Sight], now: datetime
) -> bool:
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
        and (sight := late.get((session_id, member.agent_id))) is not None
        and sight.seen == Watched(session_id, member.agent_id, member.renewals, member.state)
    ]
    lasted = late.get((session_id, ""))
    if not silent and (lasted is None or lasted.seen is not session.state):
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
