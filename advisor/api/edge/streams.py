"""How many streams one token may hold open: each keeps a connection for minutes, and asks for nothing more."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from advisor.errors import TooManyStreams


class Streams:
    """Streams that are open, by token, of this server alone; for the tasks of one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    @contextmanager
    def hold(self, token_id: str) -> Iterator[None]:
        """Count one for as long as it is open. Raises TooManyStreams where the token holds as many as it may."""
        if self._open[token_id] >= self._most:
            raise TooManyStreams(self._most)
        self._open[token_id] += 1
        try:
            yield
        finally:
            self._open[token_id] -= 1
            if not self._open[token_id]:
                del self._open[token_id]
