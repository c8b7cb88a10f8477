"""Keepers: threads that do what time makes necessary, each one thing, so that none delays another."""

import logging
import threading
import time
from collections.abc import Callable

from structlog.contextvars import clear_contextvars

from advisor.errors import Unavailable

_log = logging.getLogger(__name__)


_REST = 3
"""A keeper rests this many times as long as it worked: being woken often cannot take the server's time."""


class Keeper:
    """Calls one function at every tick, and soon when it is woken, until it is stopped."""

    def __init__(
        self,
        name: str,
        do: Callable[[], object],
        tick_s: float,
        wake: threading.Event | None = None,
        on_round: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_round` is called after every round that succeeded."""
        self._name, self._do, self._tick_s = name, do, tick_s
        self._wake = wake or threading.Event()
        self._on_round = on_round
        self._stopping = threading.Event()
        self._was_away = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for what is being done to be done."""
        self._stopping.set()
        self._wake.set()
        self._thread.join()

    def look(self) -> None:
        """Do it once; whatever goes wrong is logged: one defect must not end what keeps every job going."""
        try:
            self._do()
            self._on_round()
            self._was_away = False
        except Unavailable as error:
            if not self._was_away:
                _log.warning("The %s waits: %s Trying again.", self._name, error.sentence)
            self._was_away = True
        except Exception:
            _log.exception("The %s failed; it tries again at its next tick.", self._name)

    def _run(self) -> None:
        while not self._stopping.is_set():
            # Cleared before looking: a thread that wakes this one during the look gets another look.
            self._wake.clear()
            clear_contextvars()
            began_s = time.monotonic()
            self.look()
            rest_s = min(_REST * (time.monotonic() - began_s), self._tick_s)
            if not self._stopping.wait(rest_s):
                self._wake.wait(self._tick_s - rest_s)
