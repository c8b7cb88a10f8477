"""Where the batches of one of the script's iterators come from, whichever settings they are read with."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import deque
from threading import get_ident
from typing import Any, Deque, Dict, Iterator, List, Optional

from ..private_torch import (
    ASKED,
    KEPT_ITERATOR,
    RECEIVED,
    WORKERS,
    explain_unknown_queue,
)
from .loader_source import (
    Grouped,
    Indices,
    LoaderSettings,
    ReadNext,
    Source,
    describe_settings,
    describe_state,
    find_last_line,
    is_iterable,
    list_workers,
    open_source,
    put_off,
    resume_source,
)
from .prefetched import Prefetched


class Feed:
    """Where the batches of one of the script's iterators come from: itself, then one source after another."""

    def __init__(
        self, loader: Any, own: LoaderSettings, seed: int, remaining: Iterator[Any], unseen: int = 0
    ) -> None:
        """`remaining` are the index batches that are still to be handed out, after `unseen` that were."""
        self._loader = weakref.ref(loader)
        self.key = id(loader)
        self.indices = Indices(remaining, unseen)
        """The script's iterator takes them from here while no source has come after it."""
        self._tells_size = not is_iterable(loader)
        self.size: Optional[int] = None
        """Samples of the batch that was read last, by its index batch; None where that does not tell."""
        self.trains = False
        """Whether it is known that a training forward follows its batches."""
        # A loader with persistent workers holds its iterator, which holds this: a circle would end them badly.
        self._held = None if own.persistent_workers else loader
        self.own = own
        self.settings = own
        """In force for the index batches that are handed out now."""
        self.sources: Deque[Source] = deque()
        self.own_ended = False
        self.finished = False
        self.delivered = 0
        self.late = 0
        """Batches since timing began that were still read under settings of before."""
        self.thread = 0
        """Where the script reads its batches; 0 before the first one."""
        self._state: Dict[str, Any] = {}
        """Of the data set and the samplers, right after the first batch was read in the rank's own process."""
        self.failure = ""
        self.grouped: Optional[Grouped] = None
        """What joins index batches that no source has begun to read; None while they never were joined."""
        self._ungrouped = 0
        """Batches on their way that are joined as before the last change."""
        self._queue: Optional[Prefetched] = None
        self._seed = seed

    @property
    def loader(self) -> Any:
        """The script's; None where only its iterator is left of it."""
        return self._loader()

    def read(self, own: Any, read_next: ReadNext) -> Any:
        """The script's next batch; `own` is the iterator that the script holds."""
        queue = self.find_queue(own)
        if queue is not None:
            queue.before_read()
        batch = self._read_own(own, read_next) if not self.own_ended else self._read_source(read_next)
        if not self._tells_size:
            self.size = None
        if not self.thread and not self.settings.num_workers:
            self._state = describe_state(self.loader)
        self.thread = get_ident()
        self.delivered += 1
        if self._ungrouped:
            self._ungrouped -= 1
            self.late += 1
        return batch

    def find_queue(self, own: Any) -> Optional[Prefetched]:
        """That of the workers which read now; None where there are none, or where those of before are not done."""
        iterators = [*([] if self.own_ended else [own]), *(source.iterator for source in self.sources)]
        if len(iterators) != 1 or not WORKERS.find(iterators[0]):
            return None
        if self._queue is None or self._queue.iterator is not iterators[0]:
            known = sys.platform == "linux" and not explain_unknown_queue(
                iterators[0]
            )  # others cannot count it
            self._queue = Prefetched(iterators[0]) if known else None
        return self._queue

    def find_change(self) -> str:
        """The attribute of data set or sampler that changed while batches were read without workers; "" if none did."""
        if not self._state or self.settings.num_workers or self.loader is None:
            return ""
        now = describe_state(self.loader)
        return next((name for name in now if now[name] != self._state.get(name)), "")

    def regroup(self, own: Any, multiple: int) -> int:
        """Joins that many of the script's batches from here on; how many are on their way as they were joined before.

        `own` is the iterator that the script holds.
        """
        if multiple == (self.grouped.multiple if self.grouped is not None else 1):
            return 0
        self._let_go()
        if self.grouped is not None:
            self.grouped.multiple = multiple
        else:
            self.last_indices.regroup(lambda remaining: self.join(remaining, multiple))
        self._ungrouped = self.count_outstanding(own)
        return self._ungrouped

    def join(self, remaining: Iterator[Any], multiple: int) -> Iterator[Any]:
        """The same index batches, so many of them in one; `regroup` changes it later."""
        self.grouped = Grouped(remaining, multiple)
        return self.grouped

    def put_off(self, count: int) -> None:
        """Moves so many index batches, which no source has begun to read, to the end of the epoch."""
        self._let_go()
        self.last_indices.regroup(lambda remaining: put_off(remaining, count))

    @property
    def last_indices(self) -> Indices:
        """Those of the source that is read last."""
        return self.sources[-1].indices if self.sources else self.indices

    def _read_own(self, own: Any, read_next: ReadNext) -> Any:
        try:
            batch = read_next(own)
        except StopIteration:
            self.own_ended = True
            if not self.sources:
                self.finished = True
                raise
            return self._read_source(read_next)
        except Exception:
            self.indices.take()  # the script may leave this batch out
            raise
        self.size = self.indices.take()
        self.late += bool(self.sources)
        return batch

    def _read_source(self, read_next: ReadNext) -> Any:
        while True:
            if not self.sources:
                raise StopIteration
            source = self.sources[0]
            try:
                batch = source.read(read_next)
            except StopIteration:
                if len(self.sources) == 1:
                    self.finished = True
                    # One of them may be the iterator itself, which could never be collected from in here.
                    self.sources.clear()
                    raise
                self.sources.popleft().close()
            except Exception as error:
                if source.settings == self.own:
                    raise  # the script's own settings: it would have failed by itself
                self._fall_back(source, error)
            else:
                self.size = source.size
                self.late += len(self.sources) > 1
                return batch

    def _fall_back(self, source: Source, error: Exception) -> None:
        """Reads what a failed source leaves with the script's own settings, so that training goes on."""
        self.failure = f"Reading with {describe_settings(source.settings)} failed: {find_last_line(error)}."
        pending = list(source.indices.pending)
        rest = itertools.chain(pending, source.indices.cut())
        source.close()
        self.sources[0] = self._start(self.own, rest)
        if len(self.sources) == 1:
            self.settings = self.own

    def go_on(self, own: Any, settings: LoaderSettings) -> None:
        """Hands the index batches that no source has begun to read to a new source."""
        self._let_go()
        remaining = self.last_indices.cut()
        try:
            idle = self._find_idle_workers(own) if settings == self.own else None
            if idle is not None:
                source = resume_source(idle, settings, remaining, self.loader)
            else:
                source = self._start(settings, remaining)
        except Exception as error:
            # Index batches are handed out after the last worker has started, so all of them are still there.
            self.failure = (
                f"Reading with {describe_settings(settings)} cannot start: {find_last_line(error)}."
            )
            source = self._start(self.own, remaining)
        self.sources.append(source)
        self.settings = source.settings

    def _let_go(self) -> None:
        if self._queue is not None:
            self._queue.let_go()

    def _find_idle_workers(self, own: Any) -> Any:
        """The iterator whose persistent workers the script's loader keeps from epoch to epoch, if they idle now."""
        kept = KEPT_ITERATOR.find(self.loader)
        busy = (kept is own and not self.own_ended) or any(source.iterator is kept for source in self.sources)
        return None if busy else kept

    def _start(self, settings: LoaderSettings, remaining: Iterator[Any]) -> Source:
        self._seed += 1
        return open_source(self.loader, settings, remaining, self._seed)

    def count_outstanding(self, own: Any) -> int:
        """Batches asked for and not yet delivered."""
        asked = 0 if self.own_ended else ASKED.find(own, 0) - RECEIVED.find(own, 0)
        return asked + sum(len(source.indices.pending) for source in self.sources)

    def list_workers(self, own: Any) -> List[int]:
        """Process ids of the living workers that read for the iterator in force."""
        return list_workers(self.sources[-1].iterator if self.sources else own)
