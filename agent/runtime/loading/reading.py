"""Reads the script's training batches with other loader settings, in the very order of the script.

Only for a loss check the next batches of a launch may come at the end of their epoch.

A live iterator goes on elsewhere: what its workers have in hand is delivered first, then another iterator takes the
rest of its index batches. No random number of the script's own generators is drawn more or less than by the script.
"""

from __future__ import annotations

import copy
import weakref
from dataclasses import replace
from threading import get_ident
from typing import Any, Callable, List, Mapping, Optional, Tuple

import torch.utils.data.dataloader as loading

from ..observe.samples import find_tensors
from ..private_torch import (
    ANY_ITERATOR,
    BASE_SEED,
    INDICES,
    PLAIN_ITERATOR,
    explain_unknown_iterator,
    explain_unknown_loader,
)
from .feed import Feed
from .loader_source import (
    LoaderSettings,
    LoaderView,
    ReadNext,
    Source,
    begin_like_the_script,
    explain_no_exchange,
    observe_settings,
)
from .prefetched import Prefetched
from .random_numbers import RandomNumbers

MOST_TAPED_BYTES = 256 * 2**20
"""Host memory of one loader's batches that are kept to be read again."""


class Tape:
    """Batches of one loader, as they were when they were read first."""

    def __init__(self) -> None:
        self._batches: List[Any] = []
        self._bytes = 0
        self._is_full = False
        self.position = 0

    def replay(self, batch: Any) -> Any:
        """The tape's next batch instead of the one that was read; that one, put on the tape, where it ends."""
        place, self.position = self.position, self.position + 1
        if place < len(self._batches):
            return copy.deepcopy(self._batches[place])
        self._bytes += sum(tensor.numel() * tensor.element_size() for tensor in find_tensors(batch))
        self._is_full = self._is_full or self._bytes > MOST_TAPED_BYTES
        if not self._is_full:
            try:
                self._batches.append(copy.deepcopy(batch))
            except Exception:  # the script's own classes: then every check has other batches
                self._is_full = True
        return batch


FEED = "_fleet_advisor_feed"


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
        before = RandomNumbers(others=True) if self._replays else None
        try:
            return self._start_epoch(loader, iterate)
        finally:
            if before is not None:
                before.restore()

    def _start_epoch(self, loader: Any, iterate: Callable[[Any], Any]) -> Any:
        own = observe_settings(loader)
        settings = self._resolve(own)
        if (settings == own and self.multiple == 1) or explain_no_exchange(loader) is not None:
            iterator = iterate(loader)
            if isinstance(iterator, ANY_ITERATOR.find(loading, ())):
                self.unknown = explain_unknown_iterator(iterator) or ""
                if not self.unknown:
                    self._attach(iterator, Feed(loader, own, int(BASE_SEED.of(iterator))))
            return iterator
        remaining, seed = begin_like_the_script(loader, own)
        # The script holds an ordinary iterator that has nothing left; its batches come from the source behind it.
        alone = replace(settings, num_workers=0, pin_memory=False)
        iterator = PLAIN_ITERATOR.of(loading)(LoaderView(loader, alone, (), seed))
        feed = Feed(loader, own, seed)
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

    def _attach(self, iterator: Any, feed: Feed) -> None:
        self._iterators.pop(iterator, None)  # a persistent one comes again with every epoch
        self._iterators[iterator] = None
        setattr(iterator, FEED, feed)

    def read(self, iterator: Any, read_next: ReadNext) -> Any:
        """The next batch of an iterator that the script holds."""
        feed = getattr(iterator, FEED, None)
        if feed is None:
            return read_next(iterator)
        # Also during a replay: the script's workers keep their pace, and its epochs their length on every rank.
        before = RandomNumbers(others=True) if self._replays else None
        try:
            batch = feed.read(iterator, read_next)
        finally:
            if before is not None:
                # An epoch may begin in one replay and in no other: what it draws is not to be missing in the model.
                before.restore()
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

    # What a race asks.

    def find_queue(self) -> Optional[Prefetched]:
        """The one that the script reads from last, if it reads in the thread that it trains in."""
        live = self.list_live()
        return live[-1][1].find_queue(live[-1][0]) if live and live[-1][1].thread == get_ident() else None

    def watch_queue(self) -> None:
        """Another strategy begins: whether the workers keep up with it is told by its own steps."""
        queue = self.find_queue()
        if queue is not None:
            queue.watch()

    # What the lever asks.

    def list_live(self) -> List[Tuple[Any, Feed]]:
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
            unsettled = max(unsettled, feed.count_outstanding(own) + settings.count_ahead())
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

    def _close_kept(self, live: List[Tuple[Any, Feed]]) -> None:
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

    def _keep(self, loader: Any, feed: Feed) -> None:
        source = feed.sources[-1]
        if source.settings.persistent_workers and source.settings.num_workers:
            self._kept[loader] = source
