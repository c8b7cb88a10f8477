"""A loader exchanged in mid-epoch, with real workers: the batches and random numbers of one that is left alone."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import random
import signal
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset, IterableDataset  # noqa: E402

pytestmark = pytest.mark.thorough

loading = importlib.import_module("torch.utils.data.dataloader")
reading = importlib.import_module("fleet_advisor_runtime.loading.reading")
loader_source = importlib.import_module("fleet_advisor_runtime.loading.loader_source")

READ_NEXT = loading._BaseDataLoaderIter.__next__
PROCESS = os.getpid()
CHANGES: list[dict[str, Any]] = [
    {},
    {"num_workers": 0},
    {"num_workers": 1},
    {"num_workers": 3, "prefetch_factor": 3},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "persistent_workers": False},
    {"prefetch_factor": 1},
]


class Samples(Dataset):
    def __init__(self, size: int = 90, broken_elsewhere: bool = False, hangs_at: int = -1) -> None:
        self.size = size
        self.broken_elsewhere = broken_elsewhere
        self.hangs_at = hangs_at

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if self.broken_elsewhere and os.getpid() != PROCESS:
            raise OSError("the archive is open in another process")
        if index == self.hangs_at and os.getpid() != PROCESS:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        return index


class EagerSampler:
    """Shuffles when it is asked for an iterator, as a script's own sampler may: asking twice gives another order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.generator = random.Random(5)

    def __iter__(self) -> Any:
        order = list(range(self.size))
        self.generator.shuffle(order)
        return iter(order)

    def __len__(self) -> int:
        return self.size


def train(
    loader: Any, exchanges: dict[int, dict[str, Any]] | None, epochs: int = 4, stop_at: int = 11
) -> list[Any]:
    """Batches and random numbers of a script; `exchanges` by step, None reads without the runtime.

    The second epoch is left in the middle, after `stop_at` batches.
    """
    found, step = [], 0
    tuned = reading.Reading() if exchanges is not None else None
    for epoch in range(epochs):
        iterator = tuned.start_epoch(loader, DataLoader.__iter__) if tuned else iter(loader)
        for batch in range(len(loader)):
            if epoch == 1 and batch == stop_at:
                break
            found.append((tuned.read(iterator, READ_NEXT) if tuned else next(iterator)).tolist())
            found.append(torch.rand(1).item())
            if tuned is not None and step in exchanges:
                tuned.change(exchanges[step])
            step += 1
        else:
            with pytest.raises(StopIteration):
                tuned.read(iterator, READ_NEXT) if tuned else next(iterator)
    return found


def build(own: dict[str, Any], **fields: Any) -> Any:
    torch.manual_seed(7)
    return DataLoader(Samples(), 4, **own, **(fields or {"shuffle": True}))


@pytest.mark.parametrize(
    "own", [{}, {"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}], ids=str
)
@pytest.mark.parametrize("seed", [1, 2])
def test_exchanges_anywhere_leave_every_batch_and_random_number(own: dict[str, Any], seed: int) -> None:
    choose = random.Random(seed)
    exchanges = {step: choose.choice(CHANGES) for step in sorted(choose.sample(range(70), 9))}
    assert train(build(own), exchanges) == train(build(own), None), exchanges
    gc.collect()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("own", [{}, {"num_workers": 2}], ids=str)
def test_a_sampler_with_a_state_of_its_own_is_asked_as_often_as_by_the_script(own: dict[str, Any]) -> None:
    exchanges = {2: {"num_workers": 1, "prefetch_factor": 4}, 40: {"num_workers": 0}, 60: {}}
    found = train(build(own, sampler=EagerSampler(90)), exchanges)
    assert found == train(build(own, sampler=EagerSampler(90)), None)


def test_workers_follow_the_settings_in_force_and_end_with_them() -> None:
    loader, tuned = DataLoader(Samples(200), 4), reading.Reading()
    iterator = tuned.start_epoch(loader, DataLoader.__iter__)
    tuned.read(iterator, READ_NEXT)
    for changes, expected in (({"num_workers": 2}, 2), ({"num_workers": 3}, 3), ({}, 0)):
        unsettled = tuned.change(changes)
        for _ in range(unsettled + 1):
            tuned.read(iterator, READ_NEXT)
        [(own, feed)] = tuned.list_live()
        assert own is iterator
        assert len(feed.list_workers(own)) == expected
        assert len(multiprocessing.active_children()) == expected


def test_the_scripts_own_persistent_workers_are_used_again() -> None:
    loader, tuned = build({"num_workers": 2, "persistent_workers": True}), reading.Reading()
    iterator = tuned.start_epoch(loader, DataLoader.__iter__)
    own = {worker.pid for worker in iterator._workers}
    for changes in ({"num_workers": 1}, {}):
        tuned.read(iterator, READ_NEXT)
        for _ in range(tuned.change(changes)):
            tuned.read(iterator, READ_NEXT)
    assert {child.pid for child in multiprocessing.active_children()} == own


def test_batches_that_workers_cannot_read_are_read_as_the_script_would() -> None:
    def load() -> Any:
        torch.manual_seed(7)
        return DataLoader(Samples(broken_elsewhere=True), 4, shuffle=True)

    for changes in ({"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}):
        assert train(load(), {2: changes}) == train(load(), None)
    tuned = reading.Reading()
    loader = load()
    iterator = tuned.start_epoch(loader, DataLoader.__iter__)
    tuned.read(iterator, READ_NEXT)
    tuned.change({"num_workers": 2})
    tuned.read(iterator, READ_NEXT)
    [(_, feed)] = tuned.list_live()
    assert feed.failure == (
        "Reading with num_workers=2 and prefetch_factor=2 failed: "
        "OSError: the archive is open in another process."
    )
    assert multiprocessing.active_children() == []


def test_a_worker_that_hangs_ends_and_training_goes_on_with_the_scripts_own_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loader_source, "LONGEST_READ_S", 1)

    def load() -> Any:
        torch.manual_seed(7)
        return DataLoader(Samples(hangs_at=17), 4, shuffle=True)

    changes = {"num_workers": 2}
    assert train(load(), {2: changes, 9: {}}, epochs=2) == train(load(), None, epochs=2)
    loader, tuned = load(), reading.Reading()
    iterator = tuned.start_epoch(loader, DataLoader.__iter__)
    tuned.read(iterator, READ_NEXT)
    tuned.change(changes)
    for _ in range(len(loader) - 1):
        tuned.read(iterator, READ_NEXT)
    [(_, feed)] = tuned.list_live()
    assert feed.failure.startswith("Reading with num_workers=2 and prefetch_factor=2 failed: ")
    assert feed.failure.endswith("timed out after 1 seconds.")
    assert multiprocessing.active_children() == []


def test_a_failure_of_the_scripts_own_reading_stays_its_own() -> None:
    loader, tuned = DataLoader(Samples(broken_elsewhere=True), 4, num_workers=1), reading.Reading()
    iterator = tuned.start_epoch(loader, DataLoader.__iter__)
    with pytest.raises(OSError, match="the archive is open"):
        tuned.read(iterator, READ_NEXT)


def test_loaders_whose_batches_depend_on_their_workers_are_refused_with_a_sentence() -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Any:
            return iter(range(8))

    assert "IterableDataset" in loader_source.explain_no_exchange(DataLoader(Stream()))
    assert "in_order=False" in loader_source.explain_no_exchange(
        DataLoader(Samples(), num_workers=1, in_order=False)
    )
    assert loader_source.explain_no_exchange(DataLoader(Samples())) is None
    tuned = reading.Reading()
    iterator = tuned.start_epoch(DataLoader(Stream(), 2), DataLoader.__iter__)
    assert tuned.read(iterator, READ_NEXT).tolist() == [0, 1]


def start_undecided(tuned: Any, loader: Any) -> Any:
    """As in eval mode."""
    return tuned.start_epoch(loader, DataLoader.__iter__, for_training=tuned.has_trained(loader))


def read_undecided(tuned: Any, iterator: Any) -> Any:
    return tuned.read_undecided(iterator, READ_NEXT, tuned.find_feed(iterator)).tolist()


@pytest.mark.parametrize("own", [{}, {"num_workers": 1}], ids=str)
def test_an_iterator_read_in_eval_mode_is_trainings_once_a_training_forward_follows(
    own: dict[str, Any],
) -> None:
    loader, tuned = DataLoader(Samples(42), 4, **own), reading.Reading()
    tuned.change({"num_workers": 2})
    for epoch in range(3):
        iterator = start_undecided(tuned, loader)
        found = [*read_undecided(tuned, iterator), *read_undecided(tuned, iterator)]
        assert tuned.list_live() == []
        # The loader is known from the first epoch on.
        assert len(tuned.find_feed(iterator).list_workers(iterator)) == (2 if epoch else len(own))
        decided = tuned.decide()
        assert list(decided.sizes) == ([None, None] if own and not epoch else [4, 4])
        [(live, feed)] = tuned.list_live()
        assert live is iterator
        assert len(feed.list_workers(iterator)) == 2
        sizes = []
        for _ in range(9):
            found += tuned.read(iterator, READ_NEXT).tolist()
            sizes.append(feed.size)
        assert sizes[-1] == 2
        with pytest.raises(StopIteration):
            tuned.read(iterator, READ_NEXT)
        assert found == list(range(42))
        del iterator, live, feed
    assert multiprocessing.active_children() == []


def test_a_loader_that_is_read_without_the_setting_is_a_fault() -> None:
    data_reading = importlib.import_module("fleet_advisor_runtime.levers.computation.data_reading")
    tuned = reading.Reading()
    lever = data_reading.DataReading(tuned, torch.device("cpu"))
    loader = DataLoader(Samples(), 4)
    iterator = tuned.start_epoch(loader, DataLoader.__iter__)
    tuned.read(iterator, READ_NEXT)
    lever.switch({data_reading.WORKERS: 1}, None)
    lever.begin_timing()
    tuned.read(iterator, READ_NEXT)
    assert lever.list_faults() == {}
    # Another one that cannot go on elsewhere.
    other = tuned.start_epoch(DataLoader(Samples(broken_elsewhere=True), 4), DataLoader.__iter__)
    tuned.read(other, READ_NEXT)
    assert "the archive is open in another process" in lever.list_faults()[data_reading.WORKERS]
    tuned.read(loading._SingleProcessDataLoaderIter(loader), READ_NEXT)
    assert "iterators of its own" in lever.list_faults()[data_reading.WORKERS]
    lever.switch({}, None)
    assert lever.list_faults() == {}


def test_a_loader_without_a_hash_is_read_as_any_other() -> None:
    class Equal(DataLoader):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

    loader, tuned = Equal(Samples(), 4), reading.Reading()
    iterator = start_undecided(tuned, loader)
    assert read_undecided(tuned, iterator) == [0, 1, 2, 3]
    tuned.decide()
    assert tuned.has_trained(loader)
    assert not tuned.has_trained(Equal(Samples(), 4))
    assert tuned.read(iterator, READ_NEXT).tolist() == [4, 5, 6, 7]


def test_an_evaluation_stays_one() -> None:
    train_set, held = DataLoader(Samples(40), 4), DataLoader(Samples(8), 4)
    tuned = reading.Reading()
    training = tuned.start_epoch(train_set, DataLoader.__iter__)
    tuned.read(training, READ_NEXT)
    tuned.change({"num_workers": 1})
    evaluation = start_undecided(tuned, held)
    read_undecided(tuned, evaluation)
    read_undecided(tuned, evaluation)
    with pytest.raises(StopIteration):
        read_undecided(tuned, evaluation)
    assert tuned.decide() is None  # the script had read a batch ahead
    broken_off = start_undecided(tuned, held)
    read_undecided(tuned, broken_off)
    tuned.read(training, READ_NEXT)
    assert tuned.decide() is None
    assert [own for own, _ in tuned.list_live()] == [training]
    assert not tuned.has_trained(held)


def test_workers_that_stay_serve_one_iterator_at_a_time() -> None:
    loader, tuned = DataLoader(Samples(80), 4), reading.Reading()
    tuned.change({"num_workers": 1, "persistent_workers": True})
    iterator = tuned.start_epoch(loader, DataLoader.__iter__)
    found = tuned.read(iterator, READ_NEXT).tolist()
    # The training set is evaluated in mid-epoch.
    other = start_undecided(tuned, loader)
    assert read_undecided(tuned, other) == [0, 1, 2, 3]
    for _ in range(19):
        found += tuned.read(iterator, READ_NEXT).tolist()
    assert found == list(range(80))


def test_a_joined_batch_has_the_samples_of_all_and_a_pre_batched_one_an_unknown_number() -> None:
    loader, tuned = DataLoader(Samples(20), 4), reading.Reading()
    iterator = tuned.start_epoch(loader, DataLoader.__iter__)
    sizes = []
    for multiple in (1, 2, 2):
        tuned.regroup(multiple)
        tuned.read(iterator, READ_NEXT)
        sizes.append(tuned.find_feed(iterator).size)
    assert sizes == [4, 8, 8]
    alone = tuned.start_epoch(DataLoader(Samples(20), batch_size=None), DataLoader.__iter__)
    tuned.read(alone, lambda iterator: torch.tensor(READ_NEXT(iterator)))
    assert tuned.find_feed(alone).size is None


def test_iterators_of_a_loaders_own_are_refused_by_their_name() -> None:
    class Own(loading._SingleProcessDataLoaderIter):
        pass

    loader, tuned = DataLoader(Samples(), 4), reading.Reading()
    assert tuned.read(Own(loader), READ_NEXT).tolist() == [0, 1, 2, 3]
    assert f"({__name__}.test_iterators" in tuned.unknown
    Own.__module__ = "torchdata.stateful_dataloader.stateful_dataloader"
    stateful = reading.Reading()
    stateful.read(Own(loader), READ_NEXT)
    assert "StatefulDataLoader: the position that it saves could not be kept" in stateful.unknown


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_that_only_its_iterator_remembers_is_read_on_and_collected(persistent: bool) -> None:
    tuned = reading.Reading()

    def read_some() -> int:
        loader = DataLoader(Samples(), 4, num_workers=1, persistent_workers=persistent)
        iterator = tuned.start_epoch(loader, DataLoader.__iter__)
        loader._iterator = None
        del loader
        for expected in range(6):
            assert tuned.read(iterator, READ_NEXT)[0] == 4 * expected
            tuned.change({"num_workers": 3})
        return len(multiprocessing.active_children())

    assert read_some() == (1 if persistent else 3)
    assert tuned.list_live() == []
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("own", [{}, {"num_workers": 2}], ids=str)
def test_a_replay_stands_in_for_what_is_read(own: dict[str, Any]) -> None:
    """The loader goes on: its workers keep their pace, and an epoch ends where it would without."""
    loader, tuned = DataLoader(Samples(44), 4, **own), reading.Reading()
    iterator = tuned.start_epoch(loader, DataLoader.__iter__)

    def read(count: int) -> list[Any]:
        batches = [tuned.read(iterator, READ_NEXT) for _ in range(count)]
        found = [batch.tolist() for batch in batches]
        for batch in batches:
            batch.zero_()  # a script may use up what it was given
        return found

    def replay(count: int) -> list[Any]:
        tuned.begin_replay()
        try:
            return read(count)
        finally:
            tuned.end_replay()

    def expect(first: int, last: int) -> list[Any]:
        return [list(range(4 * index, 4 * index + 4)) for index in range(first, last)]

    assert read(1) == expect(0, 1)
    assert replay(2) == expect(1, 3)
    assert read(1) == expect(3, 4)
    assert replay(2) == expect(1, 3)
    # A longer one ends with a batch of its own, which comes again as well.
    assert replay(3) == [*expect(1, 3), *expect(8, 9)]
    tuned.forget_replay()
    assert replay(1) == expect(9, 10)
    assert read(1) == expect(10, 11)
    with pytest.raises(StopIteration):
        tuned.read(iterator, READ_NEXT)


def test_a_replay_goes_on_over_the_end_of_an_epoch() -> None:
    loader, tuned = DataLoader(Samples(12), 4), reading.Reading()

    def read_epoch() -> list[Any]:
        iterator, found = tuned.start_epoch(loader, DataLoader.__iter__), []
        for _ in range(len(loader)):
            found.append(tuned.read(iterator, READ_NEXT).tolist()[0])
        with pytest.raises(StopIteration):
            tuned.read(iterator, READ_NEXT)
        return found

    tuned.begin_replay()
    assert [*read_epoch(), *read_epoch()] == [0, 4, 8, 0, 4, 8]


@pytest.mark.parametrize("own", [{}, {"num_workers": 2}], ids=str)
@pytest.mark.parametrize("changes", [{}, {"num_workers": 1}], ids=str)
@pytest.mark.parametrize("count", [0, 3, 100])
def test_batches_put_off_come_at_the_end_of_the_epoch(
    own: dict[str, Any], changes: dict[str, Any], count: int
) -> None:
    loader, tuned = DataLoader(Samples(80), 4, **own), reading.Reading()
    iterator = tuned.start_epoch(loader, DataLoader.__iter__)
    taken = [tuned.read(iterator, READ_NEXT).tolist()[0] // 4 for _ in range(2)]
    tuned.change(changes)
    ahead = max(feed.count_outstanding(it) for it, feed in tuned.list_live())
    tuned.put_off(count)
    taken += [tuned.read(iterator, READ_NEXT).tolist()[0] // 4 for _ in range(18)]
    with pytest.raises(StopIteration):
        tuned.read(iterator, READ_NEXT)
    left = list(range(2 + ahead, 20))
    place = count % len(left)
    assert taken == [*range(2 + ahead), *left[place:], *left[:place]]


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(10**6))


def test_a_loader_without_a_length_is_replayed_as_well() -> None:
    loader, tuned = DataLoader(Endless(), 2), reading.Reading()
    iterator = tuned.start_epoch(loader, DataLoader.__iter__)
    for expected in ([0, 1], [0, 1]):
        tuned.begin_replay()
        assert tuned.read(iterator, READ_NEXT).tolist() == expected
        tuned.end_replay()


def test_batches_that_take_too_much_memory_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_TAPED_BYTES", 40)
    loader, tuned = DataLoader(Samples(), 4), reading.Reading()
    iterator = tuned.start_epoch(loader, DataLoader.__iter__)

    def replay(count: int) -> list[Any]:
        tuned.begin_replay()
        return [tuned.read(iterator, READ_NEXT).tolist()[0] for _ in range(count)]

    assert replay(3) == [0, 4, 8]
    assert replay(3) == [0, 16, 20]


@pytest.mark.parametrize(("data", "is_iterable"), [(Endless(), True), (range(9), False)])
def test_a_loader_is_told_by_whether_its_dataset_deals_out_samples_itself(
    data: Any, is_iterable: bool
) -> None:
    told = importlib.import_module("fleet_advisor_runtime.facts").describe_loader(DataLoader(data, 3))
    assert (told["iterable"], told["num_workers"]) == (is_iterable, 0)
