"""Reads the script's training batches with other loader settings, in the very order of the script.

Only for a loss check the next batches of a launch may come at the end of their epoch.

A live iterator goes on elsewhere: what its workers have in hand is delivered first, then another iterator takes the
rest of its index batches. No random number of the script's own generators is drawn more or less than by the script.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from dataclasses import replace
from typing import Any, Callable, Deque, Dict, Iterator, List, Mapping, Optional, Tuple

import torch.utils.data.dataloader as loading

from ..observe.samples import find_tensors
from ..private_torch import (
    ANY_ITERATOR,
    ASKED,
    BASE_SEED,
    INDICES,
    KEPT_ITERATOR,
    PLAIN_ITERATOR,
    RECEIVED,
    WORKERS,
    explain_unknown_iterator,
    explain_unknown_loader,
)
from .loader_source import (
    Grouped,
    LoaderSettings,
    LoaderView,
    ReadNext,
    Source,
    begin_like_the_script,
    describe_settings,
    describe_state,
    explain_no_exchange,
    observe_settings,
    open_source,
    put_off,
    resume_source,
)
from .tape import Tape

FEED = "_fleet_advisor_feed"


class _Feed:
    """Where the batches of one of the script's iterators come from: itself, then one source after another."""

    def __init__(self, loader: Any, own: LoaderSettings, seed: int) -> None:
        self._loader = weakref.ref(loader)
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
        """What joins the index batches that nobody has taken yet; None while they never were joined."""
        self._ungrouped = 0
        """Batches on their way that are joined as before the last change."""
        self._seed = seed

    @property
    def loader(self) -> Any:
        """The script's; None where only its iterator is left of it."""
        return self._loader()

    def read(self, own: Any, read_next: ReadNext) -> Any:
        """The script's next batch; `own` is the iterator that the script holds."""
        batch = self._read_own(own, read_next) if not self.own_ended else self._read_source(read_next)
        if not self.thread and not self.settings.num_workers:
            self._state = describe_state(self.loader)
        self.thread = threading.get_ident()
        self.delivered += 1
        if self._ungrouped:
            self._ungrouped -= 1
            self.late += 1
        return batch

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
        if self.grouped is not None:
            self.grouped.multiple = multiple
        elif self.sources:
            self.sources[-1].indices.regroup(lambda remaining: self.join(remaining, multiple))
        else:
            INDICES.set(own, self.join(INDICES.of(own), multiple))
        self._ungrouped = self.count_outstanding(own)
        return self._ungrouped

    def join(self, remaining: Iterator[Any], multiple: int) -> Iterator[Any]:
        """The same index batches, so many of them in one; `regroup` changes it later."""
        self.grouped = Grouped(remaining, multiple)
        return self.grouped

    def put_off(self, own: Any, count: int) -> None:
        """So many of the index batches that nobody has taken yet come at the end of the epoch."""
        if self.sources:
            self.sources[-1].indices.regroup(lambda remaining: put_off(remaining, count))
        else:
            INDICES.set(own, put_off(INDICES.of(own), count))

    def _read_own(self, own: Any, read_next: ReadNext) -> Any:
        try:
            batch = read_next(own)
        except StopIteration:
            self.own_ended = True
            if not self.sources:
                self.finished = True
                raise
            return self._read_source(read_next)
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
                self.late += len(self.sources) > 1
                return batch

    def _fall_back(self, source: Source, error: Exception) -> None:
        """Reads what a failed source leaves with the script's own settings, so that training goes on."""
        self.failure = f"Reading with {describe_settings(source.settings)} failed: {_last_line(error)}."
        pending = list(source.indices.pending)
        rest = itertools.chain(pending, source.indices.cut())
        source.close()
        self.sources[0] = self._start(self.own, rest)
        if len(self.sources) == 1:
            self.settings = self.own

    def go_on(self, own: Any, settings: LoaderSettings) -> None:
        """Hands the index batches that nobody has taken yet to a new source."""
        if self.sources:
            remaining = self.sources[-1].indices.cut()
        else:
            remaining = INDICES.of(own)
            INDICES.set(own, iter(()))
        try:
            idle = self._find_idle_workers(own) if settings == self.own else None
            if idle is not None:
                source = resume_source(idle, settings, remaining, self.loader)
            else:
                source = self._start(settings, remaining)
        except Exception as error:
            # Index batches are handed out after the last worker has started, so all of them are still there.
            self.failure = f"Reading with {describe_settings(settings)} cannot start: {_last_line(error)}."
            source = self._start(self.own, remaining)
        self.sources.append(source)
        self.settings = source.settings

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
        return _list_workers(self.sources[-1].iterator if self.sources else own)


class Reading:
    """All training loaders of this rank; `change` exchanges their live iterators at a step boundary."""

    def __init__(self) -> None:
        self._iterators: "weakref.WeakKeyDictionary[Any, None]" = weakref.WeakKeyDictionary()
        """The script's, the latest last. Each carries its feed as an attribute, so that both can be collected."""
        self._kept: "weakref.WeakKeyDictionary[Any, Source]" = weakref.WeakKeyDictionary()
        self._changes: Mapping[str, Any] = {}
        self._look_at_memory = False
        self.pinned = False
        """Whether the first timed batch lay in pinned memory."""
        self._tapes: "weakref.WeakKeyDictionary[Any, Tape]" = weakref.WeakKeyDictionary()
        self._replays = False
        self.multiple = 1
        """How many of the script's batches make one."""
        self.unknown = ""
        """Why torch's own iterators cannot be handled here, as a sentence."""

    # What the patches ask.

    def start_epoch(self, loader: Any, iterate: Callable[[Any], Any]) -> Any:
        """The script iterates a training loader: an iterator with the settings in force."""
        self.unknown = explain_unknown_loader(loader) or ""
        if self.unknown:
            return iterate(loader)
        own = observe_settings(loader)
        settings = self._resolve(own)
        if (settings == own and self.multiple == 1) or explain_no_exchange(loader) is not None:
            iterator = iterate(loader)
            if isinstance(iterator, ANY_ITERATOR.find(loading, ())):
                self.unknown = explain_unknown_iterator(iterator) or ""
                if not self.unknown:
                    self._attach(iterator, _Feed(loader, own, int(BASE_SEED.of(iterator))))
            return iterator
        remaining, seed = begin_like_the_script(loader, own)
        # The script holds an ordinary iterator that has nothing left; its batches come from the source behind it.
        alone = replace(settings, num_workers=0, pin_memory=False)
        iterator = PLAIN_ITERATOR.of(loading)(LoaderView(loader, alone, (), seed))
        feed = _Feed(loader, own, seed)
        remaining = feed.join(remaining, self.multiple)
        kept = self._kept.get(loader)
        if kept is not None and kept.settings == settings and not kept.closed:
            kept.start_epoch(loader, remaining)
            feed.own_ended, feed.settings = True, settings
            feed.sources.append(kept)
        else:
            INDICES.set(iterator, remaining)
            feed.go_on(iterator, settings)
            feed.own_ended = True
            self._keep(loader, feed)
        self._attach(iterator, feed)
        return iterator

    def _attach(self, iterator: Any, feed: _Feed) -> None:
        self._iterators.pop(iterator, None)  # a persistent one comes again with every epoch
        self._iterators[iterator] = None
        setattr(iterator, FEED, feed)

    def read(self, iterator: Any, read_next: ReadNext) -> Any:
        """The next batch of an iterator that the script holds."""
        feed = getattr(iterator, FEED, None)
        if feed is None:
            return read_next(iterator)
        # Also during a replay: the script's workers keep their pace, and its epochs their length on every rank.
        batch = feed.read(iterator, read_next)
        if self._replays:
            # Epochs come and go: the loader stays, and a script that keeps only its iterator has one epoch.
            source = iterator if feed.loader is None else feed.loader
            batch = self._tapes.setdefault(source, Tape()).replay(batch)
        if self._look_at_memory:
            self._look_at_memory = False
            self.pinned = any(tensor.is_pinned() for tensor in find_tensors(batch))
        return batch

    # What a loss check asks.

    def put_off(self, count: int) -> None:
        """So many of each loader's next batches come at the end of the epoch, where its order can be kept otherwise."""
        for own, feed in self.list_live():
            if count and feed.loader is not None and explain_no_exchange(feed.loader) is None:
                feed.put_off(own, count)

    def begin_replay(self) -> None:
        """From here on the batches of the first replay stand in for those that are read, from its first one on."""
        self._replays = True
        for tape in self._tapes.values():
            tape.position = 0

    def end_replay(self) -> None:
        """The script gets what it reads."""
        self._replays = False

    def forget_replay(self) -> None:
        """The next replay is a first one."""
        self._tapes.clear()

    # What the lever asks.

    def list_live(self) -> List[Tuple[Any, _Feed]]:
        """The iterators that training reads from now, the latest last, each with its feed."""
        pairs = [(iterator, getattr(iterator, FEED)) for iterator in self._iterators]
        return [(iterator, feed) for iterator, feed in pairs if feed.thread and not feed.finished]

    def change(self, changes: Mapping[str, Any]) -> int:
        """The script's own settings with `changes` from here on.

        Returns how many more batches of each iterator were asked for before the change or are asked for at its
        beginning: until they are delivered, reading does not run at its lasting pace.
        """
        self._changes = dict(changes)
        unsettled = 0
        live = self.list_live()
        for own, feed in live:
            settings = self._resolve(feed.own)
            feed.failure = ""
            if settings == feed.settings or feed.loader is None:
                continue
            unsettled = max(unsettled, feed.count_outstanding(own) + _count_ahead(settings))
            self._kept.pop(feed.loader, None)
            feed.go_on(own, settings)
            self._keep(feed.loader, feed)
        self._close_kept(live)
        return unsettled

    def regroup(self, multiple: int) -> int:
        """So many of the script's batches make one from here on.

        Returns how many batches of each iterator were asked for before: they come as they were.
        """
        self.multiple = multiple
        live = [(own, feed) for own, feed in self.list_live() if feed.loader is not None]
        return max((feed.regroup(own, multiple) for own, feed in live), default=0)

    def _close_kept(self, live: List[Tuple[Any, _Feed]]) -> None:
        reading = [source for _, feed in live for source in feed.sources]
        for loader, source in list(self._kept.items()):
            if source.settings != self._resolve(observe_settings(loader)) and source not in reading:
                del self._kept[loader]
                source.close()

    def begin_timing(self, look_at_memory: bool) -> None:
        """Counts of batches start again, and the next batch is looked at if asked for."""
        self._look_at_memory, self.pinned = look_at_memory, False
        for _, feed in self.list_live():
            feed.delivered = feed.late = 0

    def _resolve(self, own: LoaderSettings) -> LoaderSettings:
        settings = replace(own, **self._changes)
        if settings.num_workers:
            return settings
        return replace(
            settings, prefetch_factor=own.prefetch_factor, persistent_workers=own.persistent_workers
        )

    def _keep(self, loader: Any, feed: _Feed) -> None:
        source = feed.sources[-1]
        if source.settings.persistent_workers and source.settings.num_workers:
            self._kept[loader] = source


def _list_workers(iterator: Any) -> List[int]:
    return [worker.pid for worker in WORKERS.find(iterator, []) if worker.is_alive()]


def _count_ahead(settings: LoaderSettings) -> int:
    return settings.num_workers * settings.prefetch_factor


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    # A worker's own error ends its traceback; the first line only says which worker it was.
    return lines[-1].rstrip(".") if lines else type(error).__name__
