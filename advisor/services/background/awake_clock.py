"""A clock of the time for which this server ran: leases are measured by it."""

from collections.abc import Callable


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
