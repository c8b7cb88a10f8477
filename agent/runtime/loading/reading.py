"""Reads the script's training batches with other loader settings, in the very order of the script.

Only for a loss check the next batches of a launch may come at the end of their epoch.

A live iterator goes on elsewhere: what its workers have in hand is delivered first, then another iterator takes the
rest of its index batches. No random number of the script's own generators is drawn more or less than by the script.
"""

from __future__ import annotations

import copy
import weakref
from collections import deque
from dataclasses import replace
from threading import get_ident
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Tuple

import torch.utils.data.dataloader as loading

from ..observe.tensors import find_tensors
from ..private_torch import (
    ANY_ITERATOR,
    ASKED,
    BASE_SEED,
    INDICES,
    PLAIN_ITERATOR,
    RECEIVED,
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
    explain_no_grouping,
    explain_own_iterator,
    explain_own_reader,
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
MOST_UNDECIDED = 256
"""Batches in a row that are remembered until it is known whether they are training's."""


class Undecided:
    """Batches that one iterator gave while the model was evaluated, or before it was put in training mode."""

    def __init__(self, iterator: Any, feed: Feed) -> None:
        # An evaluation's workers end with it.
        self.iterator, self.feed = weakref.ref(iterator), feed
        self.sizes: Deque[Optional[int]] = deque(maxlen=MOST_UNDECIDED)
        """Samples of each since the last training forward."""


class Reading:
    """All loaders of this rank; `change` exchanges the live iterators of training at a step boundary.

    An iterator is training's once a training forward follows its batches, in whichever mode the model was when they
    were read: some trainers put it in training mode only after that. One that is read in training mode is so at once.
    """

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
        self._is_foreign = False
        """Whether training has read from an iterator that cannot be handled."""
        self._trained: "Dict[int, weakref.ref[Any]]" = {}
        """Loaders that training has read, by identity: a script's own may have no hash."""
        self.undecided: Optional[Undecided] = None
        """What was read last, while no training forward has followed it."""

    # What the patches ask.

    def has_trained(self, loader: Any) -> bool:
        """Whether training has read from this loader."""
        known = self._trained.get(id(loader))
        return known is not None and known() is loader

    def start_epoch(self, loader: Any, iterate: Callable[[Any], Any], for_training: bool = True) -> Any:
        """The script iterates a loader: an iterator with the settings in force, or, where it is not known whether
        training will read it, one with the script's own."""
        unknown = explain_unknown_loader(loader) or explain_own_reader(loader) or ""
        if for_training or not self.unknown:
            self.unknown = unknown
        if unknown:
            return iterate(loader)
        before = RandomNumbers(others=True) if self._replays else None
        try:
            return self._start_epoch(loader, iterate, for_training)
        finally:
            if before is not None:
                before.restore()

    def _start_epoch(self, loader: Any, iterate: Callable[[Any], Any], for_training: bool) -> Any:
        own = observe_settings(loader)
        settings, multiple = (self._resolve(own), self._find_multiple(loader)) if for_training else (own, 1)
        if (settings == own and multiple == 1) or explain_no_exchange(loader) is not None:
            iterator = iterate(loader)
            if isinstance(iterator, ANY_ITERATOR.find(loading, ())):
                unknown = explain_unknown_iterator(iterator)
                if unknown is not None:
                    self.unknown = unknown
                else:
                    unseen = ASKED.find(iterator, 0) - RECEIVED.find(iterator, 0)
                    feed = Feed(loader, own, int(BASE_SEED.of(iterator)), INDICES.of(iterator), unseen)
                    INDICES.set(iterator, feed.indices)
                    self._attach(iterator, feed)
            return iterator
        remaining, seed = begin_like_the_script(loader, own)
        # The script holds an ordinary iterator that has nothing left; its batches come from the source behind it.
        alone = replace(settings, num_workers=0, pin_memory=False)
        iterator = PLAIN_ITERATOR.of(loading)(LoaderView(loader, alone, (), seed))
        feed = Feed(loader, own, seed, remaining)
        feed.indices.regroup(lambda remaining: feed.join(remaining, multiple))
        kept = self._kept.get(loader)
        if kept is not None and kept.settings == settings and not kept.closed and not self._is_read(kept):
            kept.start_epoch(loader, feed.indices.cut())
            feed.own_ended, feed.settings = True, settings
            feed.sources.append(kept)
        else:
            feed.go_on(iterator, settings)
            feed.own_ended = True
            self._keep(loader, feed)
        self._attach(iterator, feed)
        return iterator

    def _is_read(self, source: Source) -> bool:
        """Whether another of the script's iterators has not come to its end."""
        return any(source in feed.sources for _, feed in self._list_feeds() if not feed.finished)

    def _attach(self, iterator: Any, feed: Feed) -> None:
        self._iterators.pop(iterator, None)  # a persistent one comes again with every epoch
        self._iterators[iterator] = None
        setattr(iterator, FEED, feed)

    def find_feed(self, iterator: Any) -> Optional[Feed]:
        """That of an iterator that the script holds; None where torch's own cannot be handled."""
        feed: Optional[Feed] = getattr(iterator, FEED, None)
        return feed

    def read(self, iterator: Any, read_next: ReadNext, feed: Optional[Feed] = None) -> Any:
        """The next batch of an iterator that training reads."""
        feed = feed or self.find_feed(iterator)
        self.undecided = None  # it was an evaluation's
        if feed is None:
            self._is_foreign = True
            self.unknown = self.unknown or explain_own_iterator(iterator)
            return read_next(iterator)
        if not feed.trains:
            self._take_for_training(feed)
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

    def read_undecided(self, iterator: Any, read_next: ReadNext, feed: Optional[Feed]) -> Any:
        """The next batch of one that may be an evaluation's."""
        if feed is None:
            return read_next(iterator)
        if self.undecided is None or self.undecided.feed is not feed:
            self.undecided = Undecided(iterator, feed)
        try:
            batch = feed.read(iterator, read_next)
        except StopIteration:
            self.undecided = None  # an evaluation has come to its end
            raise
        self.undecided.sizes.append(feed.size)
        return batch

    def decide(self) -> Optional[Undecided]:
        """A training forward follows: its iterator is training's from here on, with the settings in force."""
        found, self.undecided = self.undecided, None
        if found is None:
            return None
        feed, iterator = found.feed, found.iterator()
        self._take_for_training(feed)
        is_at_hand = iterator is not None and feed.loader is not None and feed.thread == get_ident()
        if is_at_hand and explain_no_exchange(feed.loader) is None:
            settings = self._resolve(feed.own)
            if settings != feed.settings:
                feed.go_on(iterator, settings)
                self._keep(feed.loader, feed)
            feed.regroup(iterator, self._find_multiple(feed.loader))
        return found

    def _find_multiple(self, loader: Any) -> int:
        return self.multiple if explain_no_grouping(loader) is None else 1

    def _take_for_training(self, feed: Feed) -> None:
        feed.trains = True
        if feed.loader is not None:
            trained, key = self._trained, id(feed.loader)
            trained[key] = weakref.ref(feed.loader, lambda _: trained.pop(key, None))

    # What a loss check asks.

    def put_off(self, count: int) -> None:
        """So many of each loader's next batches come at the end of the epoch, where its order can be kept otherwise."""
        for _, feed in self.list_live():
            if count and feed.loader is not None and explain_no_exchange(feed.loader) is None:
                feed.put_off(count)

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
        found = self._list_feeds()
        return [
            (iterator, feed) for iterator, feed in found if feed.trains and feed.thread and not feed.finished
        ]

    def _list_feeds(self) -> List[Tuple[Any, Feed]]:
        return [(iterator, getattr(iterator, FEED)) for iterator in self._iterators]

    def take_foreign(self) -> bool:
        """Whether training has read from an iterator that cannot be handled, since this was last asked."""
        found, self._is_foreign = self._is_foreign, False
        return found

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
        self._close_kept()
        return unsettled

    def regroup(self, multiple: int) -> int:
        """So many of the script's batches make one from here on.

        Returns how many batches of each iterator were asked for before: they come as they were.
        """
        self.multiple = multiple
        live = [(own, feed) for own, feed in self.list_live() if feed.loader is not None]
        return max((feed.regroup(own, multiple) for own, feed in live), default=0)

    def _close_kept(self) -> None:
        reading = [source for _, feed in self._list_feeds() for source in feed.sources]
        for loader, source in list(self._kept.items()):
            if source.settings != self._resolve(observe_settings(loader)) and source not in reading:
                del self._kept[loader]
                source.close()

    def begin_timing(self, look_at_memory: bool) -> None:
        """Counts of batches start again, and the next batch is looked at if asked for."""
        self._look_at_memory, self.pinned = look_at_memory, False
        self._is_foreign = False
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
