"""Leases: which agents were heard of from their places. This is in memory only: a server that starts grants new time.

Most beats of a running session bring nothing that has to be kept: they are answered from here, without the database.
What is known of a session counts until a transaction ends it, or takes a member out of it.
"""

import threading
from collections.abc import Collection
from dataclasses import dataclass, field

from advisor.protocol.measured.messages import Beat, BeatReply, MemberState
from advisor.protocol.measured.trials import SessionState
from advisor.services.timers import Pace
from advisor.storage import Database

Place = tuple[str, str]
"""A session, and an agent that belongs to its gang."""


@dataclass(frozen=True)
class _Running:
    """A running session, and the members of it that are known to run."""

    generation: int
    rendezvous: str | None
    agents: set[str] = field(default_factory=set)


class Leases:
    """What beats have told this server; share it between threads."""

    def __init__(self, database: Database) -> None:
        self._lock = threading.Lock()
        self._beaten: set[Place] = set()
        self._running: dict[str, _Running] = {}
        self.stamp = 0
        """Another one whenever something of what is known may have changed."""
        database.forget = self._forget

    def renew(self, session_id: str, agent_id: str, beat: Beat, pace: Pace) -> BeatReply | None:
        """Renew a lease; return the answer to the beat, or None where the database has to be asked."""
        with self._lock:
            self._beaten.add((session_id, agent_id))
            known = self._running.get(session_id)
        if (
            known is None
            or agent_id not in known.agents
            or known.generation != beat.generation
            or beat.state is not MemberState.RUNNING
            or beat.log
            or beat.telemetry.samples
        ):
            return None
        return make_reply(SessionState.RUNNING, known.rendezvous, pace)

    def remember(self, session_id: str, agent_id: str, beat: Beat, reply: BeatReply, stamp: int) -> None:
        """Keep what the database has answered, if nothing has changed since `stamp`, taken before it was asked."""
        if reply.state is not SessionState.RUNNING or beat.state is not MemberState.RUNNING:
            return
        with self._lock:
            if stamp == self.stamp:
                running = self._running.setdefault(session_id, _Running(beat.generation, reply.rendezvous))
                running.agents.add(agent_id)

    def take_beaten(self) -> set[Place]:
        """Return the places that renewed their leases since this was asked last."""
        with self._lock:
            beaten, self._beaten = self._beaten, set()
        return beaten

    def has_beaten(self, place: Place) -> bool:
        """Whether a place will be among the next ones."""
        with self._lock:
            return place in self._beaten

    def _forget(self, session_ids: Collection[str]) -> None:
        with self._lock:
            self.stamp += 1
            for session_id in session_ids:
                self._running.pop(session_id, None)


def make_reply(state: SessionState, rendezvous: str | None, pace: Pace) -> BeatReply:
    """Return what a beat is answered."""
    return BeatReply(state=state, rendezvous=rendezvous, beat_s=pace.beat_s, fence_s=pace.fence_s)
