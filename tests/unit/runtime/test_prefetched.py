"""The queue of a loader's workers, emptied and filled between two strategies: the same batches in the same order."""

from __future__ import annotations

import importlib
import multiprocessing
import random
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset, IterableDataset  # noqa: E402

pytestmark = pytest.mark.thorough

loading = importlib.import_module("torch.utils.data.dataloader")
reading = importlib.import_module("fleet_advisor_runtime.loading.reading")

READ_NEXT = loading._BaseDataLoaderIter.__next__
WORKERS: list[dict[str, Any]] = [
    {"num_workers": 1, "prefetch_factor": 4},
    {"num_workers": 2, "prefetch_factor": 3},
    {"num_workers": 2, "prefetch_factor": 2, "persistent_workers": True},
]


class Slow(Dataset):
    def __init__(self, seconds: float = 0.0, size: int = 60) -> None:
        self.seconds, self.size = seconds, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds)
        return index


class Gated(Dataset):
    """No batch is ready while the gate is closed."""

    def __init__(self, gate: Any) -> None:
        self.gate = gate

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> int:
        self.gate.wait(60)
        return index


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(60))


def start(loader: Any) -> tuple[Any, Any]:
    tuned = reading.Reading()
    iterator = tuned.start_epoch(loader, DataLoader.__iter__)
    tuned.read(iterator, READ_NEXT)
    return tuned, iterator


@pytest.mark.parametrize("own", WORKERS, ids=str)
@pytest.mark.parametrize("dataset", [Slow, Stream])
def test_a_queue_that_is_emptied_and_filled_gives_every_batch_in_its_order(own: Any, dataset: Any) -> None:
    dice, tuned, found = random.Random(str(own)), reading.Reading(), []
    loader = DataLoader(dataset(), 2, **own)
    for _ in range(3):
        iterator = tuned.start_epoch(loader, DataLoader.__iter__)
        while True:
            try:
                found.append(tuned.read(iterator, READ_NEXT).tolist())
            except StopIteration:
                break
            queue = tuned.find_queue()
            if queue is not None and dice.random() < 0.3:
                queue.lower(dice.randrange(4))
            elif queue is not None and dice.random() < 0.3:
                queue.fill(dice.randrange(8))
            if dataset is Slow and dice.random() < 0.05:
                tuned.change({"num_workers": dice.choice([1, 3])})
        tuned.change({})
    assert found == 3 * [batch.tolist() for batch in DataLoader(dataset(), 2, **own)]


def test_a_queue_is_emptied_by_reading_on_and_filled_by_waiting() -> None:
    tuned, iterator = start(DataLoader(Slow(0.002), 1, num_workers=2, prefetch_factor=4))
    queue = tuned.find_queue()
    queue.fill(8)
    assert (queue.count_asked(), queue.count_ready()) == (8, 8)
    queue.lower(0)
    asked = []
    for _ in range(9):
        tuned.read(iterator, READ_NEXT)
        asked.append(queue.count_asked())
    assert asked == [7, 6, 5, 4, 3, 2, 1, 0, 8]


@pytest.mark.parametrize("is_strained", [False, True])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_loader_is_strained_where_its_workers_never_rest(is_strained: bool, workers: int) -> None:
    """Also before its queue has run out."""
    gate = multiprocessing.Event()
    gate.set()
    tuned, iterator = start(DataLoader(Gated(gate), 1, num_workers=workers, prefetch_factor=6))
    queue = tuned.find_queue()
    queue.fill(6 * workers)
    tuned.watch_queue()
    if is_strained:
        gate.clear()
    for _ in range(5):
        tuned.read(iterator, READ_NEXT)
        if not is_strained:
            queue.fill(6 * workers)
    gate.set()
    assert queue.is_strained() is is_strained


def test_batches_that_nobody_reads_ahead_have_no_queue() -> None:
    tuned, _ = start(DataLoader(Slow(), 2))
    assert tuned.find_queue() is None
