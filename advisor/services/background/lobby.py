"""The lobby: where agents wait that ask for work. One look into the database serves all of them, however many."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from advisor.services.timers import Timers
from advisor.storage import Database
from advisor.storage.fault_points import FaultPoint


class Lobby:
    """Knows who waits, calls those a place waits for, and notes who was heard of; share it between threads."""

    def __init__(self, database: Database, timers: Timers) -> None:
        self._database, self._timers = database, timers
        self.pace = timers.pace(0)
        """How agents that hold sessions are to renew them."""
        self._usual = timedelta(seconds=timers.silent_s)
        self._written_at: datetime | None = None
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._heard: dict[str, datetime] = {}
        """Agent -> when it asked last, all that this server ever heard."""
        self._unwritten: dict[str, datetime] = {}
        self._has_news = False
        """Whether an agent has come that this server had not heard of for longer than is usual."""
        self.wake = threading.Event()
        """Set when a look should not wait for its time: a new agent has come, or a gang was formed."""

    @contextmanager
    def wait(self, agent_id: str, call: Callable[[], None], now: datetime) -> Iterator[None]:
        """Let an agent wait within the context; `call` is called, in any thread, whenever it should look for itself."""
        with self._lock:
            before = self._heard.get(agent_id)
            self._heard[agent_id] = now
            self._unwritten[agent_id] = now
            self._waiting.setdefault(agent_id, []).append(call)
            is_new = before is None or now - before > self._usual
            self._has_news |= is_new
        if is_new:
            self.wake.set()
        try:
            yield
        finally:
            with self._lock:
                calls = self._waiting[agent_id]
                calls.remove(call)
                if not calls:
                    del self._waiting[agent_id]

    def hear(self, agent_id: str, now: datetime) -> None:
        """Note that an agent was heard of that does not wait; the next look writes it down."""
        with self._lock:
            self._heard[agent_id] = self._unwritten[agent_id] = now

    def look(self, now: datetime) -> bool:
        """Write down who was heard of, and call the agents that places wait for.

        Return whether an agent has come that was not there before: more gangs may be possible.
        """
        with self._lock:
            heard: dict[str, datetime] = {}
            if self._has_news or self._written_at is None or abs(now - self._written_at) >= self._usual / 10:
                heard, self._unwritten = self._unwritten, {}
            has_news, self._has_news = self._has_news, False
            anybody = bool(self._waiting)
        try:
            if heard:
                with self._database.begin() as work:
                    work.agents.see_all(heard)
                    self.pace = self._timers.pace(work.members.count_live())
                    work.reach(FaultPoint.AGENTS_SEEN)
                self._written_at = now
            if anybody:
                with self._database.read() as work:
                    self.call(work.members.awaited())
        except BaseException:
            with self._lock:
                self._unwritten = heard | self._unwritten
                self._has_news |= has_news
            raise
        return has_news

    def call(self, agents: set[str] | None = None) -> None:
        """Call these agents if they wait; without `agents` everybody."""
        with self._lock:
            called = [
                call
                for agent_id, calls in self._waiting.items()
                if agents is None or agent_id in agents
                for call in calls
            ]
        for call in called:
            call()
