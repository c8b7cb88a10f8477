"""Pruning: what is needed no more is taken away little by little, so that no request waits for it."""

import logging
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta

from advisor.settings import Settings
from advisor.storage import Database
from advisor.storage.whole.upkeep import Ages

PAUSE_S = 3600.0
"""Between two sweeps; records are counted in days."""
_LARGEST_STEP = timedelta(days=1)
"""As far as the clock of the day is believed where the server's own seconds show less."""
_AT_ONCE = 500
"""Most records of a kind that one transaction takes away."""

_log = logging.getLogger(__name__)


def count_ages(settings: Settings, now: datetime) -> Ages:
    """Return the moments that records are old from."""
    return Ages(
        telemetry=now - timedelta(days=settings.keep_telemetry_days),
        logs=now - timedelta(days=settings.keep_logs_days),
        quarantine=now - timedelta(days=settings.keep_quarantine_days),
        agents=now - timedelta(days=settings.keep_agents_days),
        tokens=now - timedelta(days=settings.keep_tokens_days),
        jobs=now - timedelta(days=settings.keep_jobs_days),
    )


class Pruner:
    """Takes old records away, step by step."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        began_at: datetime,
        elapsed: Callable[[], float],
        at_once: int = _AT_ONCE,
    ) -> None:
        """`elapsed` is a monotonic clock of seconds; at `began_at` it is looked at first."""
        self._database, self._settings, self._at_once = database, settings, at_once
        self._began_at, self._elapsed, self._began_s = began_at, elapsed, elapsed()
        self._gone: Counter[str] = Counter()

    def step(self, now: datetime) -> bool:
        """Take some away; return whether there may be more. Once there is none the log says what went."""
        # A clock that is set to another year makes nothing old.
        served = timedelta(seconds=self._elapsed() - self._began_s)
        now = min(now, self._began_at + served + _LARGEST_STEP)
        with self._database.begin() as work:
            gone = work.upkeep.prune(count_ages(self._settings, now), self._at_once)
        self._gone.update(gone)
        if any(gone.values()):
            return True
        if self._gone.total():
            went = ", ".join(f"{count} {kind}" for kind, count in self._gone.items() if count)
            _log.info("Taken away because of their age: %s.", went)
            self._gone.clear()
        return False
