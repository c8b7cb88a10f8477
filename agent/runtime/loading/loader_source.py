"""Iterators over the rest of a script's index batches, with loader settings other than the script's own."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Tuple

import torch
import torch.utils.data.dataloader as loading

from .. import private_torch
from ..observe.tensors import read_stored

USUAL_PREFETCH = 2
"""Batches per worker that a DataLoader asks for ahead unless told otherwise."""

LONGEST_READ_S = 60
"""Wait for a batch of workers that the script does not have: forked beside the rank's threads, one of them may hang."""

ReadNext = Callable[[Any], Any]
"""The iterator's own __next__, without the runtime's patch."""


@dataclass(frozen=True)
class LoaderSettings:
    """How a DataLoader reads; without workers there is nothing to prefetch or to keep."""

    num_workers: int
    prefetch_factor: int = USUAL_PREFETCH
    pin_memory: bool = False
    persistent_workers: bool = False

    def count_ahead(self) -> int:
        """Batches that are asked for ahead."""
        return self.num_workers * self.prefetch_factor


def observe_settings(loader: Any) -> LoaderSettings:
    """The settings that the script gave this loader."""
    return LoaderSettings(
        num_workers=int(loader.num_workers),
        prefetch_factor=int(loader.prefetch_factor or USUAL_PREFETCH),
        pin_memory=bool(loader.pin_memory),
        persistent_workers=bool(loader.persistent_workers),
    )


def explain_no_exchange(loader: Any) -> Optional[str]:
    """Why this loader's iterators cannot go on with other settings and the same batches; None when they can."""
    missing = private_torch.explain_unknown_loader(loader)
    if missing is not None:
        return missing
    if is_iterable(loader):
        return (
            "The script reads an IterableDataset, whose samples each worker deals out by itself: other workers would "
            "give other batches. Use a map-style dataset with a sampler."
        )
    if isinstance(loader.dataset, getattr(torch.utils.data, "MapDataPipe", ())):
        return "The script reads a data pipe, which shards itself by worker. Use a map-style dataset with a sampler."
    if not getattr(loader, "in_order", True):
        return "The script takes batches as they come (in_order=False), so their order cannot be kept."
    return None


def describe_state(loader: Any) -> Dict[str, Any]:
    """What the loader's data set and samplers keep in their attributes, shortly: equal while nothing has changed."""
    found: Dict[str, Any] = {}
    for part in ("dataset", "sampler", "batch_sampler"):
        for name, value in getattr(getattr(loader, part, None), "__dict__", {}).items():
            plain = value if isinstance(value, (bool, int, float, str)) else id(value)
            size = len(value) if type(value) in (list, dict, set, bytearray, deque) else None
            found[f"{part}.{name}"] = (plain, size)
    return found


def is_iterable(loader: Any) -> bool:
    """Whether its data set deals out samples by itself: an index batch then says only how many there may be."""
    kind = private_torch.DATASET_KINDS.of(loading).Iterable
    return bool(private_torch.DATASET_KIND.of(loader) == kind)


def find_batch_size(loader: Any) -> Optional[int]:
    """Samples of a full batch; None where the loader does not say."""
    size = read_stored(loader, "batch_size") or read_stored(
        read_stored(loader, "batch_sampler"), "batch_size"
    )
    return size if isinstance(size, int) else None


class LoaderView:
    """The script's loader as another iterator is to see it."""

    def __init__(self, loader: Any, settings: LoaderSettings, indices: Any, seed: int) -> None:
        self._loader = loader
        private_torch.INDEX_SAMPLER.set(self, indices)
        self.num_workers = settings.num_workers
        self.prefetch_factor = settings.prefetch_factor if settings.num_workers else None
        self.pin_memory = settings.pin_memory
        self.persistent_workers = settings.persistent_workers
        self.timeout = loader.timeout if settings.num_workers else 0
        if settings.num_workers and settings != observe_settings(loader):
            self.timeout = loader.timeout or LONGEST_READ_S
        # Workers are seeded from here, so that the script's own generators stay untouched.
        self.generator = torch.Generator().manual_seed(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class Grouped:
    """The script's index batches, several of them joined into one; the last of an epoch may hold fewer."""

    def __init__(self, remaining: Iterator[Any], multiple: int) -> None:
        self._remaining = remaining
        self.multiple = multiple

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        first = next(self._remaining)
        if self.multiple == 1:
            return first
        rest = itertools.islice(self._remaining, self.multiple - 1)
        return [index for batch in itertools.chain([first], rest) for index in batch]


def put_off(remaining: Iterator[Any], count: int) -> Iterator[Any]:
    """The same index batches, the first `count` of them last; counted round and round where fewer are left."""
    first = list(itertools.islice(remaining, count))
    if 0 < len(first) < count:
        place = count % len(first)
        return iter(first[place:] + first[:place])
    return itertools.chain(remaining, first)


class Indices:
    """Index batches on their way to one iterator, each remembered until its batch was delivered."""

    def __init__(self, remaining: Iterator[Any], unseen: int = 0) -> None:
        """`unseen` index batches were handed out before."""
        self._remaining = remaining
        self._unseen = unseen
        self.pending: Deque[Any] = deque()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        index = next(self._remaining)
        self.pending.append(index)
        return index

    def take(self) -> Optional[int]:
        """A batch was delivered: how many samples it was made of; None where that is unknown."""
        if self._unseen or not self.pending:
            self._unseen = max(0, self._unseen - 1)
            return None
        index = self.pending.popleft()
        return len(index) if type(index) in (list, tuple) else None

    def cut(self) -> Iterator[Any]:
        """What was not handed out yet; nothing more will be."""
        remaining, self._remaining = self._remaining, iter(())
        return remaining

    def regroup(self, group: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        """What was not handed out yet comes in other batches from here on."""
        self._remaining = group(self._remaining)

    def refill(self, remaining: Iterator[Any]) -> None:
        """A new epoch for the same iterator."""
        self._remaining = remaining
        self.pending.clear()


class Source:
    """An iterator over some of the script's index batches."""

    def __init__(self, iterator: Any, settings: LoaderSettings, indices: Indices, close: bool = True) -> None:
        self.iterator = iterator
        self.settings = settings
        self.indices = indices
        self.size: Optional[int] = None
        """Samples of the batch that was read last; None where that is unknown."""
        self._close = close and settings.num_workers > 0
        self.closed = False

    def read(self, read_next: ReadNext) -> Any:
        batch = read_next(self.iterator)
        self.size = self.indices.take()
        return batch

    def start_epoch(self, loader: Any, remaining: Iterator[Any]) -> None:
        """The same workers read another epoch."""
        self.indices.refill(remaining)
        private_torch.BEGIN_AGAIN.of(self.iterator)(loader)

    def close(self) -> None:
        self.closed = True
        if not self._close:
            return
        workers = private_torch.WORKERS.find(self.iterator, [])
        private_torch.STOP_WORKERS.of(self.iterator)()
        for worker in workers:
            if worker.is_alive():
                # It hangs, and torch's polite signal with it: the rank's own end would wait for it.
                worker.kill()
                worker.join()


def open_source(loader: Any, settings: LoaderSettings, remaining: Iterator[Any], seed: int) -> Source:
    indices = Indices(remaining)
    view = LoaderView(loader, settings, indices, seed)
    kind = private_torch.WORKERS_ITERATOR if settings.num_workers else private_torch.PLAIN_ITERATOR
    return Source(kind.of(loading)(view), settings, indices)


def resume_source(kept: Any, settings: LoaderSettings, remaining: Iterator[Any], loader: Any) -> Source:
    """The iterator that the script's own loader keeps again, whose workers have outlived their batches."""
    indices = Indices(remaining)
    sampler = private_torch.INDEX_SAMPLER.of(kept)
    private_torch.INDEX_SAMPLER.set(kept, indices)
    private_torch.BEGIN_AGAIN.of(kept)(loader)
    private_torch.INDEX_SAMPLER.set(kept, sampler)
    return Source(kept, settings, indices, close=False)


def begin_like_the_script(loader: Any, own: LoaderSettings) -> Tuple[Iterator[Any], int]:
    """The epoch's index batches and the workers' seed, drawn as often and in the order as by the loader itself."""
    sampler, kept = private_torch.INDEX_SAMPLER.of(loader), private_torch.KEPT_ITERATOR.of(loader)
    remaining = iter(sampler)
    if own.persistent_workers and own.num_workers and kept is not None:
        return remaining, int(private_torch.BASE_SEED.of(kept))
    seed = torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item()
    if own.num_workers:
        remaining = iter(sampler)  # an iterator with workers asks its sampler twice
    return remaining, int(seed)


def explain_no_grouping(loader: Any) -> Optional[str]:
    """Why batches of this loader cannot be joined before they are read; None when they can."""
    if not private_torch.MAKES_BATCHES.of(loader):
        return "The script's loader hands over samples and no batches (batch_size=None): there is nothing to join."
    return None


_READERS = {
    "torchdata.stateful_dataloader": "The script reads through torchdata's StatefulDataLoader: the position that it "
    "saves could not be kept while its batches were read with other settings. Set its arguments by hand.",
    "torchdata.nodes": "The script reads through torchdata's nodes, a graph of its own: set num_workers of its "
    "ParallelMapper and prefetch_factor of its Prefetcher by hand.",
    "nvidia.dali": "The script reads with NVIDIA DALI: set its pipeline's num_threads and prefetch_queue_depth by "
    "hand.",
}


def explain_own_reader(reader: Any) -> Optional[str]:
    """Why this loader or iterator cannot be exchanged, where it is of a library whose settings stay as they are."""
    homes = [kind.__module__ for kind in type(reader).__mro__]
    return next((why for name, why in _READERS.items() if any(home.startswith(name) for home in homes)), None)


def explain_own_iterator(iterator: Any) -> str:
    """Why one that no loader of torch's has made cannot be exchanged."""
    kind = type(iterator)
    return explain_own_reader(iterator) or (
        f"The script's DataLoader makes iterators of its own ({kind.__module__}.{kind.__qualname__}), which cannot be "
        "exchanged for others. Set its arguments by hand."
    )


def describe_settings(settings: LoaderSettings) -> str:
    """A few words for sentences."""
    if not settings.num_workers:
        return "num_workers=0"
    return f"num_workers={settings.num_workers} and prefetch_factor={settings.prefetch_factor}"


def list_workers(iterator: Any) -> List[int]:
    """Process ids of its living workers."""
    return [worker.pid for worker in private_torch.WORKERS.find(iterator, []) if worker.is_alive()]


def find_last_line(error: Exception) -> str:
    """A worker's own error ends its traceback; the first line only says which worker it was."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__
