"""Takes the signals of the script's loaders: whose each batch is, how long it took and how many samples it has."""

from __future__ import annotations

import time
import weakref
from typing import Any, Callable

from .facts import describe_loader
from .loading.loader_source import find_batch_size
from .observe.recorder import DATA, INTERRUPTED, NEW_EPOCH
from .rank_process import RankProcess
from .untraced import untraced


class ScriptLoaders:
    """What is read in eval mode is an evaluation's inside the step, until a training forward follows it."""

    def __init__(self, process: RankProcess) -> None:
        self._process = process
        self._models, self._recorder = process.models, process.recorder
        self._samples, self._reading = process.samples, process.reading
        self._lengths: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
        """Of the loaders that the script has asked for it: to ask is not always harmless, and torch remembers it."""
        self._loader: Callable[[], Any] = lambda: None
        """The training loader iterated last."""

    @untraced
    def start_epoch(self, loader: Any, iterate: Callable[[Any], Any]) -> Any:
        """A loader is iterated anew: the iterator that the script gets."""
        is_evaluated = self._models.are_evaluated()
        self._recorder.raise_flag(INTERRUPTED if is_evaluated else NEW_EPOCH)
        if not is_evaluated:
            self._note_training(loader)
        for_training = not is_evaluated or self._reading.has_trained(loader)
        return self._reading.start_epoch(loader, iterate, for_training)

    def note_length(self, loader: Any, batches: int) -> None:
        """The script has asked how many batches one pass over the loader has."""
        self._lengths[loader] = batches
        if self._loader() is loader:
            self._process.batches = batches

    def read_batch(self, iterator: Any, read_next: Callable[[Any], Any]) -> Any:
        """The script's next batch."""
        feed = self._reading.find_feed(iterator)
        if not (feed is not None and feed.trains) and self._models.are_evaluated():
            self._recorder.raise_flag(INTERRUPTED)
            return self._reading.read_undecided(iterator, read_next, feed)
        start_s = time.perf_counter()
        self._recorder.begin(DATA)
        try:
            batch = self._reading.read(iterator, read_next, feed)
        finally:
            self._recorder.end(DATA)
        self._samples.note_fetch(0, None) if feed is None else self._samples.note_fetch(feed.key, feed.size)
        self._recorder.add_data_wait(time.perf_counter() - start_s)
        return batch

    def note_evaluation(self) -> None:
        """A forward in eval mode takes up what was read before it."""
        self._reading.undecided = None

    @untraced
    def decide(self) -> None:
        """A training forward follows what was read in eval mode."""
        found = self._reading.decide()
        if found is not None:
            self._note_training(found.feed.loader)
            for size in found.sizes:
                self._samples.note_fetch(found.feed.key, size)

    def _note_training(self, loader: Any) -> None:
        if loader is not None:
            self._process.loader, self._process.batches = describe_loader(loader), self._lengths.get(loader)
            self._loader = weakref.ref(loader)
            self._samples.loader_batch_size = find_batch_size(loader)
