"""Wakes threads and streams of this server that wait for what a transaction writes, once it is committed."""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

JOBS = "jobs"
"""Jobs may have to move on: the scheduler looks after them."""
PLACES = "places"
"""Agents were given places: the lobby calls those that wait."""
_log = logging.getLogger(__name__)


def story_of(job_id: str) -> str:
    """What is rung for when something happened to a job."""
    return f"job {job_id}"


class Notifier:
    """Knows who waits for what; share it between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: defaultdict[str, list[Callable[[], None]]] = defaultdict(list)

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
        with self._lock:
            calls = list(self._calls.get(topic, ()))
        for call in calls:
            try:
                call()
            except Exception:
                # The writer has committed already: a reader that cannot be called does not undo that.
                _log.exception("A call for %s failed.", topic)
