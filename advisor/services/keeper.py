"""The keeper: a thread that gives up lost sessions and moves jobs on, at every tick and whenever it is woken."""

import logging
import threading
from collections.abc import Callable
from datetime import datetime

from advisor.errors import Unavailable
from advisor.services.reaper import expire_leases
from advisor.services.scheduling import schedule_jobs
from advisor.services.tuning import Timers, Tuning
from advisor.storage import Database

_log = logging.getLogger(__name__)


def keep_up(
    database: Database, tuning: Tuning, now: datetime, timers: Timers, served_since: datetime | None = None
) -> None:
    """Do once what time makes necessary: expire leases, then move on every job that holds no session."""
    expire_leases(database, now, timers)
    schedule_jobs(database, tuning, now, timers, served_since)


class Keeper:
    """Calls `keep_up` until it is stopped. It remembers only when it began: another server can take over any time."""

    def __init__(
        self,
        database: Database,
        tuning: Tuning,
        timers: Timers,
        clock: Callable[[], datetime],
        wake: threading.Event,
        tick_s: float,
    ) -> None:
        self._database, self._tuning, self._timers = database, tuning, timers
        self._clock, self._wake, self._tick_s = clock, wake, tick_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for what is being done to be done."""
        self._stopping.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        served_since = self._clock()
        while not self._stopping.is_set():
            # Cleared before looking: whoever wakes it during the look gets another one.
            self._wake.clear()
            try:
                keep_up(self._database, self._tuning, self._clock(), self._timers, served_since)
            except Unavailable as error:
                _log.warning("%s Trying again.", error.sentence)
            except Exception:
                # One defect must not end what keeps every other job going.
                _log.exception("The keeper failed; it tries again at its next tick.")
            if not self._stopping.is_set():
                self._wake.wait(self._tick_s)
