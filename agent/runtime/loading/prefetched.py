"""How full the prefetch queue of a loader's iterator is, and how it is brought to where a strategy had left it."""

from __future__ import annotations

import time
import weakref
from typing import Any, Iterator, List, Optional

from ..private_torch import ASK_AGAIN, ASKED, DELIVERED, INDICES, RECEIVED, TASKS, WORKERS

LONGEST_FILL_S = 3.0
"""Wait for a queue to be filled: a loader that takes longer fills it in the untimed steps as far as it can."""
_LOOKS_S = 0.001
_WATCHED = 32
"""Reads that tell whether the workers keep up."""


class Prefetched:
    """The queue of one iterator with workers."""

    def __init__(self, iterator: Any) -> None:
        # The iterator keeps this queue. Kept here too, its workers would end only when Python collects garbage.
        self._iterator = weakref.ref(iterator)
        self.workers = len(WORKERS.of(iterator))
        self._withheld: Optional[_Withheld] = None
        self._level = 0
        self._strained: List[bool] = []
        """Of the reads since `watch` but the first: whether no worker had time to rest."""
        self._reads = 0

    @property
    def iterator(self) -> Any:
        return self._iterator()

    def count_asked(self) -> int:
        """Batches asked for and not yet delivered."""
        return int(ASKED.of(self.iterator) - RECEIVED.of(self.iterator))

    def count_ready(self) -> int:
        """Those that no worker has to do anything for."""
        early = sum(len(task) > 1 for task in TASKS.of(self.iterator).values())
        return int(DELIVERED.of(self.iterator).qsize()) + early

    def watch(self) -> None:
        """From here on it is told whether the workers keep up."""
        self._strained, self._reads = [], 0

    def is_strained(self) -> bool:
        """Whether most batches were taken while each worker had one in hand: it hardly keeps up, or not at all."""
        return 2 * sum(self._strained) > len(self._strained)

    def lower(self, level: int) -> None:
        """Asks for no more batches until so many are left."""
        if self._withheld is None and self.count_ready() > level:
            self._level = level
            self._withheld = _Withheld(INDICES.of(self.iterator))
            INDICES.set(self.iterator, self._withheld)

    def before_read(self) -> None:
        """A batch is about to be taken."""
        if 0 < self._reads < _WATCHED:
            # In a full queue only what was taken since is in hand.
            in_hand = self.count_asked() - self.count_ready()
            self._strained.append(in_hand >= min(self.workers, self._reads))
        self._reads += 1
        if self._withheld is not None and self.count_asked() <= self._level:
            self.let_go()

    def let_go(self) -> None:
        """Asks for all that was not asked for meanwhile."""
        iterator, withheld, self._withheld = self.iterator, self._withheld, None
        # Another epoch may have begun.
        if withheld is not None and INDICES.find(iterator) is withheld:
            INDICES.set(iterator, withheld.remaining)
            for _ in range(withheld.count):
                ASK_AGAIN.of(iterator)()

    def fill(self, level: int) -> None:
        """Waits until so many batches are ready."""
        self.let_go()
        end_s = time.perf_counter() + LONGEST_FILL_S
        while self.count_ready() < min(level, self.count_asked()) and time.perf_counter() < end_s:
            time.sleep(_LOOKS_S)


class _Withheld:
    """Index batches that no consumer has asked for yet."""

    def __init__(self, remaining: Iterator[Any]) -> None:
        self.remaining = remaining
        self.count = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.count += 1
        raise StopIteration
