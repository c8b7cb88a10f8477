"""The bell: wakes those who wait for what somebody writes, in this process and in other servers of one PostgreSQL.

It only saves waiting: a call may be lost, and whoever waits looks by itself now and then. SQLite has one server, whose
calls need no way. On PostgreSQL they are notifications, sent after the commit and in a thread of their own: sent within
a transaction they would let only one transaction commit at a time.
"""

import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from sqlalchemy import Engine, bindparam, func, select
from sqlalchemy.exc import SQLAlchemyError

JOBS = "jobs"
"""Jobs may have to move on: the leader looks after them."""
PLACES = "places"
"""Agents were given places: whoever has them waiting calls them."""
TERMS = "terms"
"""A server has begun to lead."""

_CHANNEL = "fleet_advisor"
_ECHO = "echo"
"""What a server says to itself, to hear whether it hears."""
_ECHO_S, _SILENCE_S = 5.0, 30.0
"""An echo comes within the first; after the second without any call a server asks for one."""
_PAUSE_S, _DEAF_PAUSE_S = 1.0, 60.0
"""Between two tries to connect; and where calls do not come although the connection stands."""
_STOP_CHECK_S = 0.5
_log = logging.getLogger(__name__)


def story_of(job_id: str) -> str:
    """What is rung for when something happened to a job."""
    return f"job {job_id}"


class Bell:
    """Knows who waits for what; share it between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: defaultdict[str, list[Callable[[], None]]] = defaultdict(list)

    @property
    def is_heard(self) -> bool:
        """Whether calls of all servers come: who waits may look less often."""
        return True

    def on(self, topic: str, call: Callable[[], None]) -> None:
        """Let `call` be called, in any thread, whenever it is rung for `topic`."""
        with self._lock:
            self._calls[topic].append(call)

    @contextmanager
    def waiting(self, topic: str, call: Callable[[], None]) -> Iterator[None]:
        """Let `call` be called within the context."""
        self.on(topic, call)
        try:
            yield
        finally:
            with self._lock:
                self._calls[topic].remove(call)
                if not self._calls[topic]:
                    del self._calls[topic]

    def ring(self, topic: str) -> None:
        """Call everybody who waits for `topic`."""
        self._call(topic)

    def start(self, name: str) -> None:
        """Begin to speak with other servers, where there may be some; `name` is this one's."""

    def stop(self) -> None:
        """Stop doing so."""

    def _call(self, *topics: str) -> None:
        """Call those who wait for any of these topics; without any, everybody."""
        with self._lock:
            calls = [call for topic in topics or tuple(self._calls) for call in self._calls.get(topic, ())]
        for call in calls:
            try:
                call()
            except Exception:
                # What was written is written, whoever cannot be told.
                _log.exception(
                    "Somebody who waits for %s cannot be called.", " and ".join(topics) or "anything"
                )


class SharedBell(Bell):
    """A bell that is heard in every server of one PostgreSQL."""

    def __init__(self, engine: Engine, echo_s: float = _ECHO_S, deaf_pause_s: float = _DEAF_PAUSE_S) -> None:
        """A server that does not hear itself within `echo_s` hears nobody, and tries again after `deaf_pause_s`."""
        super().__init__()
        self._engine, self._echo_s, self._deaf_pause_s = engine, echo_s, deaf_pause_s
        self._name = ""
        self._untold: set[str] = set()
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._hears = False
        self._is_told_deaf = False
        self._threads = [
            threading.Thread(target=run, name=f"bell-{run.__name__.strip('_')}", daemon=True)
            for run in (self._tell, self._hear)
        ]

    @property
    def is_heard(self) -> bool:
        """Whether the calls of other servers come."""
        return self._hears

    def ring(self, topic: str) -> None:
        """Call everybody who waits for `topic`, here at once and elsewhere in a moment."""
        self._call(topic)
        # A command that writes to the database of a server is no server.
        if self._name:
            self._send(topic)

    def start(self, name: str) -> None:
        """Begin to speak with the other servers; calls with this one's name are its own."""
        self._name = name
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop, whatever is left to say."""
        self._stopping.set()
        self._news.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _send(self, topic: str) -> None:
        with self._lock:
            self._untold.add(topic)
        self._news.set()

    def _tell(self) -> None:
        while self._news.wait() and not self._stopping.is_set():
            self._news.clear()
            with self._lock:
                untold, self._untold = self._untold, set()
            if not untold:
                continue
            said = [{"said": json.dumps([self._name, topic])} for topic in sorted(untold)]
            try:
                with self._engine.begin() as connection:
                    connection.execute(select(func.pg_notify(_CHANNEL, bindparam("said"))), said)
            except SQLAlchemyError:
                # Whoever waits for it looks by itself.
                self._stopping.wait(_PAUSE_S)

    def _hear(self) -> None:
        driver_error = self._engine.dialect.loaded_dbapi.Error
        while not self._stopping.is_set():
            pause_s = _PAUSE_S
            try:
                self._listen(driver_error)
            except _Deaf as error:
                pause_s = self._deaf_pause_s
                if not self._is_told_deaf:
                    _log.warning("%s", error)
                self._is_told_deaf = True
            except (SQLAlchemyError, driver_error) as error:
                # The database is away, or somebody ended the connection: keepers say what matters of it.
                _log.debug("The calls of other servers do not come: %s", error)
            except Exception:
                _log.exception("The calls of other servers cannot be listened to; it is tried again.")
            self._hears = False
            self._stopping.wait(pause_s)

    def _listen(self, driver_error: type[Exception]) -> None:
        """Hear calls until the server stops. Raises _Deaf, and the driver's errors when the connection ends."""
        with closing(self._engine.raw_connection()) as connection:
            driver: Any = connection.driver_connection
            connection.detach()
            driver.rollback()
            driver.autocommit = True
            try:
                driver.execute(f"LISTEN {_CHANNEL}")
            except driver_error as error:
                if driver.closed:
                    raise
                raise _Deaf(str(error)) from error
            heard_s = time.monotonic()
            asked_s: float | None = None
            while not self._stopping.is_set():
                for call in driver.notifies(timeout=_STOP_CHECK_S, stop_after=1):
                    self._receive(*json.loads(call.payload))
                    heard_s, asked_s = time.monotonic(), None
                if asked_s is None and (not self._hears or time.monotonic() - heard_s > _SILENCE_S):
                    self._send(_ECHO)
                    asked_s = time.monotonic()
                elif asked_s is not None and time.monotonic() - asked_s > self._echo_s:
                    raise _Deaf("No notification comes through the connection.")

    def _receive(self, sender: str, topic: str) -> None:
        if not self._hears:
            # What was rung for meanwhile is unknown.
            self._call()
            self._hears, self._is_told_deaf = True, False
        if sender != self._name:
            self._call(topic)


class _Deaf(Exception):
    """The connection stands, and no call comes through it."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Calls of other servers on this database do not come ({reason.strip()}). Each server looks by itself "
            "instead, which takes a moment longer. A pooler that hands connections on after each transaction cannot "
            "pass LISTEN: give servers a direct connection, or one that a session keeps."
        )
