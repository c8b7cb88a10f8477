"""Step boundaries and samples, told from the order of optimizer steps, forwards and fetches."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import types
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
steps = importlib.import_module("fleet_advisor_runtime.observe.steps")
samples = importlib.import_module("fleet_advisor_runtime.observe.samples")
recorder = importlib.import_module("fleet_advisor_runtime.observe.recorder")
rank_process = importlib.import_module("fleet_advisor_runtime.rank_process")
environment = importlib.import_module("fleet_advisor_runtime.link.environment")
beat = importlib.import_module("fleet_advisor_runtime.link.beat")


class Optimizer:
    """Stands for any torch optimizer: only its identity matters, and which parameters it holds."""

    def __init__(self, *parameters: Any) -> None:
        self.param_groups = [{"params": [*parameters]}]


def is_strange(_optimizer: Any) -> bool:
    return False


def begins_step(watch: Any) -> bool:
    """As the runtime asks at every training forward."""
    begins, watch.leader_stepped = watch.leader_stepped, False
    return bool(begins)


def play(watch: Any, cycle: str, cycles: int, optimizers: dict[str, Optimizer]) -> list[int]:
    """`f` is a training forward, other letters are optimizer steps; the places of boundaries in the cycle."""
    boundaries = []
    for _ in range(cycles):
        for place, letter in enumerate(cycle):
            if letter == "f":
                if begins_step(watch):
                    boundaries.append(place)
            else:
                watch.note_optimizer_step(optimizers[letter])
    return boundaries


@pytest.mark.parametrize(
    ("cycle", "expected"),
    [("fa", 0), ("fffa", 0), ("fafb", 0), ("fafafafb", 0), ("fab", 0), ("ffafb", 0)],
)
def test_one_boundary_per_cycle_when_it_repeats(cycle: str, expected: int) -> None:
    watch = steps.StepWatch(is_strange)
    optimizers = {"a": Optimizer(), "b": Optimizer()}
    play(watch, cycle, 12, optimizers)
    assert play(watch, cycle, 5, optimizers) == [expected] * 5


def test_leader_is_named_anew_when_an_optimizer_joins() -> None:
    watch = steps.StepWatch(is_strange)
    optimizers = {"a": Optimizer(), "b": Optimizer()}
    play(watch, "fa", 10, optimizers)
    play(watch, "fafb", 12, optimizers)
    assert play(watch, "fafb", 4, optimizers) == [0] * 4


def test_training_steps_are_counted_before_the_leader_is_known() -> None:
    watch = steps.StepWatch(is_strange)
    optimizers = {"a": Optimizer()}
    for count in range(1, 8):
        play(watch, "fa", 1, optimizers)
        assert watch.training_steps == count


def test_the_beat_tells_the_steps_of_the_training_those_before_the_leader_was_known_too(
    tmp_path: Path,
) -> None:
    process = rank_process.RankProcess(environment.read_environment({"ADVISOR_SESSION_DIR": str(tmp_path)}))
    optimizer = Optimizer()
    for _ in range(30):
        process.watch.note_optimizer_step(optimizer)
        process.write_beat()
    seen = beat.read(beat.locate(str(tmp_path), 0))
    assert (seen.rank, seen.step) == (0, 30)


@dataclasses.dataclass
class Batch:
    weight: float
    image: Any


@pytest.mark.parametrize(
    ("args", "loader_batch_size", "expected"),
    [
        ((torch.zeros(5, 3),), None, 5),
        (({"mask": None, "ids": torch.zeros(7, 2)},), None, 7),
        (([torch.tensor(1.0), (torch.zeros(4, 2), 0)], 3), None, 4),
        ((Batch(1.0, torch.zeros(6, 1)),), None, 6),
        ((torch.zeros(100, 8),), 8, 8),
        ((torch.zeros(8, 100),), 8, 8),
        (("text", 3), 8, 0),
    ],
)
def test_batch_is_found_in_the_first_tensor(args: Any, loader_batch_size: int | None, expected: int) -> None:
    assert samples.count_samples(args, {}, loader_batch_size) == expected


def test_a_batch_seen_three_times_counts_once_when_a_loader_feeds_it() -> None:
    count = samples.SampleCount(None)
    batch = (torch.zeros(8, 2),)
    for _ in range(3):
        count.note_fetch(0, 8)
        for model in (1, 1, 2, 1):  # critic on real and fake, generator, critic again
            count.note_forward(model, batch, {})
        assert count.close_step() == 8


def test_accumulated_batches_all_count_when_fetched_at_once() -> None:
    count = samples.SampleCount(None)
    for _ in range(3):
        for _ in range(4):
            count.note_fetch(0, 8)
        for _ in range(4):
            count.note_forward(1, (torch.zeros(8, 2),), {})
        assert count.forwards == 4
        assert count.close_step() == 32


@pytest.mark.parametrize(
    "given",
    [torch.zeros(1, 230), torch.zeros(16, 30), torch.zeros(350, 16), torch.zeros(2, 8), object()],
    ids=["padding-free", "pairs", "nodes of graphs", "a part", "an object"],
)
def test_a_sample_is_what_the_loader_gives(given: Any) -> None:
    count = samples.SampleCount(None)
    counted = []
    for size in (8, 8, 3):
        count.note_fetch(0, size)
        count.note_forward(1, (given,), {})
        counted.append(count.close_step())
    assert counted == [8, 8, 3]


def test_a_batch_of_unknown_size_is_full_unless_full_ones_had_a_row_for_each_sample() -> None:
    def count_all(*rows: int) -> list[float]:
        count, found = samples.SampleCount(None), []
        count.loader_batch_size = 8
        for number in rows:
            count.note_fetch(0, None)
            count.note_forward(1, (torch.zeros(number, 230),), {})
            found.append(count.close_step())
        return found

    assert count_all(8, 8, 3) == [8, 8, 3]
    assert count_all(1, 1, 1) == [8, 8, 8]
    assert count_all(16, 16, 10) == [8, 8, 8]


def test_batches_of_two_loaders_that_one_forward_takes_up_count_together() -> None:
    count = samples.SampleCount(None)
    count.note_fetch(0, 16)
    count.note_fetch(1, 112)
    count.note_forward(1, (torch.zeros(240, 3),), {})
    assert count.close_step() == 128


def test_steps_between_two_decisions_are_kept_end_to_end() -> None:
    found = recorder.Recorder()
    found.clock = types.SimpleNamespace(mark=itertools.count(10, 10).__next__)
    found.begin_step(0)
    kept: list[Any] = []
    found.keep_steps(2, kept)
    found.pass_boundary(4)
    found.raise_flag(recorder.INTERRUPTED)
    found.pass_boundary(5)
    assert not found.ahead
    last = found.close_step(30, 6)
    assert [(step.start, step.end, step.samples) for step in [*kept, last]] == [
        (0, 10, 4),
        (10, 20, 5),
        (20, 30, 6),
    ]
    assert [step.flag for step in [*kept, last]] == [recorder.PLAIN, recorder.INTERRUPTED, recorder.PLAIN]


def test_optimizers_that_wait_are_those_of_the_models_that_have_not_stepped() -> None:
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    watch = steps.StepWatch(is_strange)
    first, second = torch.optim.SGD(model.parameters(), 0.1), torch.optim.Adam(model.parameters())
    foreign = torch.optim.SGD(other.parameters(), 0.1)
    for made in (first, second, foreign):
        watch.note_made(made)
    assert watch.list_waiting([model]) == [first, second]
    watch.note_optimizer_step(first)
    assert watch.list_waiting([model]) == [second]
    assert watch.list_waiting([model, other]) == [second, foreign]
    del second, made
    assert watch.list_waiting([model]) == []


def test_optimizer_that_takes_the_place_of_a_dead_one_in_memory_is_another_one() -> None:
    watch = steps.StepWatch(is_strange)
    first = Optimizer()
    watch.note_optimizer_step(first)
    watch._known[id(first)] = lambda: None, 1  # what is left of one that died at this address
    assert not watch.knows(first)
    watch.note_optimizer_step(first)
    assert watch.list_optimizers() == [first]


def test_leader_that_died_leaves_no_trust_to_whoever_has_its_address() -> None:
    asked: list[Any] = []
    watch, first = steps.StepWatch(lambda optimizer: bool(asked.append(id(optimizer)))), Optimizer()
    for _ in range(steps.LONE_OPTIMIZER_STEPS):
        watch.note_optimizer_step(first)
    known = id(first)
    del first
    heirs = [Optimizer() for _ in range(100)]
    heir = next(heir for heir in heirs if id(heir) == known)
    watch.note_optimizer_step(heir)
    assert asked == [known, known], "it was met as any newcomer"


def play_with_inner_ones(keeps_them: bool) -> list[int]:
    """The steps that begin with a boundary, of a script that makes an optimizer of other tensors in each."""
    own = Optimizer()
    watch = steps.StepWatch(lambda optimizer: optimizer is not own)
    kept, boundaries = [], []
    for step in range(40):
        inner = Optimizer()  # where the one before was let go, it has its address
        for _ in range(2):
            watch.note_optimizer_step(inner)
        kept += [inner] if keeps_them else []
        boundaries += [step] if begins_step(watch) else []
        watch.note_optimizer_step(own)
    return boundaries


def test_optimizers_that_a_script_makes_anew_in_every_step_close_none() -> None:
    boundaries = play_with_inner_ones(keeps_them=False)
    assert boundaries[-20:] == [*range(20, 40)]
    assert boundaries == play_with_inner_ones(keeps_them=True), "whatever a rank keeps"


@pytest.mark.parametrize("every", [1, 3, 5, 20])
def test_an_optimizer_that_is_made_anew_every_few_steps_goes_on_as_the_one_before(every: int) -> None:
    watch, parameters = steps.StepWatch(is_strange), [torch.ones(1), torch.zeros(1)]
    boundaries, optimizer = [], Optimizer()
    for step in range(160):
        if step % every == 0:
            optimizer = Optimizer(*parameters)
        boundaries += [step] if begins_step(watch) else []
        watch.note_optimizer_step(optimizer)
    assert boundaries[-60:] == [*range(100, 160)]
    assert not watch.never_settles


def test_optimizers_that_share_some_parameters_still_take_turns() -> None:
    watch, shared = steps.StepWatch(is_strange), torch.ones(1)
    optimizers = {letter: Optimizer(shared, torch.zeros(1)) for letter in "abcd"}
    play(watch, "fafbfcfd", 8, optimizers)
    assert play(watch, "fafbfcfd", 4, optimizers) == [0] * 4


@pytest.mark.parametrize(("every", "never"), [(1, True), (9, True), (20, False)])
def test_models_that_come_and_go_before_a_leader_is_known_never_settle(every: int, never: bool) -> None:
    watch = steps.StepWatch(is_strange)
    for _ in range(90):
        optimizer = Optimizer(torch.ones(1))
        for _ in range(every):
            watch.note_optimizer_step(optimizer)
    assert watch.never_settles is never


def test_optimizers_that_are_kept_one_for_each_parameter_settle() -> None:
    watch = steps.StepWatch(is_strange)
    kept = [Optimizer(torch.ones(1)) for _ in range(90)]
    boundaries = []
    for step in range(6):
        boundaries += [step] if begins_step(watch) else []
        for optimizer in kept:
            watch.note_optimizer_step(optimizer)
            assert not watch.never_settles
    assert boundaries[-3:] == [3, 4, 5]


def test_copies_of_parameters_made_anew_are_stepped_all_the_same() -> None:
    watch = steps.StepWatch(is_strange)
    for _ in range(6):
        masters = Optimizer()
        for _ in range(14):
            watch.note_optimizer_step(masters)
        assert begins_step(watch)
