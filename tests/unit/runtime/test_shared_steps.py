"""Steps as all ranks count them: the same places on every rank, however each of them steps, skips and accumulates."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from fleet_advisor_runtime.observe.sharded import reduces_gradients  # noqa: E402

from tests.unit.runtime.lone_rank import open_lone_rank  # noqa: E402

shared_steps = importlib.import_module("fleet_advisor_runtime.observe.shared_steps")

EXCHANGING = SimpleNamespace(require_backward_grad_sync=True)
ALONE = SimpleNamespace(require_backward_grad_sync=False)
"""Within no_sync()."""
SHARDED = SimpleNamespace()
PUT_OFF = SimpleNamespace(_sync_gradients=False)
"""FullyShardedDataParallel within no_sync()."""


def train(steps, *passes, steps_optimizer=True) -> bool:
    """A step with these passes, and whether it ended: the model's state at each forward; None is a backward alone."""
    for model in passes:
        if model is not None:
            steps.note_forward(model)
        steps.note_backward()
    return steps.end_step(steps_optimizer)


def watch(*passes) -> shared_steps.SharedSteps:
    """After four steps alike."""
    steps = shared_steps.SharedSteps()
    for _ in range(4):
        train(steps, *passes)
    return steps


@pytest.mark.parametrize(
    ("passes", "exchanges"),
    [
        ((EXCHANGING,), 4),
        ((SHARDED,), 4),
        ((ALONE, ALONE, EXCHANGING), 4),
        ((EXCHANGING, EXCHANGING, EXCHANGING), 12),
        ((EXCHANGING, None), 4),  # the second one through a graph that was kept exchanges nothing
    ],
)
def test_only_passes_that_exchange_gradients_count(passes, exchanges: int) -> None:
    steps = watch(*passes)
    assert steps.is_look_due
    assert steps.describe() == [exchanges, exchanges // 4, 0]


@pytest.mark.parametrize("passes", [(), (SHARDED,), (SHARDED, SHARDED)])
def test_where_nothing_is_known_of_exchanges_each_update_counts_once(passes) -> None:
    steps = shared_steps.SharedSteps()
    steps.by_updates = True
    assert all(train(steps, *passes) for _ in range(4))
    assert steps.describe() == [4, 1, 0]
    steps.agree(1, 0)
    assert [train(steps, *passes), train(steps, *passes, steps_optimizer=False)] == [True, False]


def test_a_forward_whose_loss_was_dropped_does_not_count() -> None:
    steps = shared_steps.SharedSteps()
    for _ in range(3):
        steps.note_forward(EXCHANGING)
    train(steps, EXCHANGING)
    assert steps.exchanges == 1


def test_agreed_steps_end_at_the_same_exchange_on_a_rank_that_skips_its_optimizer() -> None:
    ranks = [watch(EXCHANGING), watch(EXCHANGING)]
    for steps in ranks:
        steps.agree(1, 0)
    ends: list[list[int]] = [[], []]
    for step in range(6):
        for rank, steps in enumerate(ranks):
            if train(steps, EXCHANGING, steps_optimizer=not (rank == 1 and step in (2, 3))):
                ends[rank].append(steps.exchanges)
    assert ends[0] == ends[1] == [5, 6, 7, 8, 9, 10]


def test_a_step_that_was_under_way_is_finished_first() -> None:
    steps = watch(EXCHANGING, EXCHANGING)
    train(steps, EXCHANGING, steps_optimizer=False)
    exchanges, length, since = steps.describe()
    assert (exchanges, length, since) == (9, 2, 1)
    steps.agree(length, since)
    assert not steps.end_step(False)
    assert train(steps, EXCHANGING)
    assert not steps.end_step(False)


def test_looks_become_rarer_and_end_with_the_agreement() -> None:
    steps, looks = shared_steps.SharedSteps(), []
    for step in range(60):
        train(steps, EXCHANGING)
        if steps.is_look_due:
            steps.describe()
            looks.append(step + 1)
    assert looks[:6] == [4, 5, 6, 7, 9, 11]
    assert len(looks) < 15
    steps.agree(1, 0)
    assert not steps.is_look_due


def test_own_steps_count_on_where_no_exchange_is_seen_any_more() -> None:
    """Averaging by hand after a while, as post-local SGD does."""
    steps = watch(EXCHANGING)
    steps.agree(1, 0)
    ends = [step for step in range(30) if train(steps, EXCHANGING if step < 5 else ALONE)]
    assert ends[:5] == [*range(5)]
    assert ends[5:] == [*range(ends[5], 30)]
    assert ends[5] - ends[4] == shared_steps.UNSEEN


def test_a_schedule_that_exchanges_now_and_then_counts_by_its_exchanges() -> None:
    steps = shared_steps.SharedSteps()
    found = []
    for step in range(120):
        train(steps, EXCHANGING if step % 6 == 5 else ALONE)
        found.append(steps.exchanges)
    assert found[-1] == 20


def test_own_steps_count_where_no_exchange_is_ever_seen() -> None:
    steps = shared_steps.SharedSteps()
    for _ in range(20):
        train(steps, ALONE)
    assert steps.is_look_due
    assert steps.describe()[1] == 1


@pytest.mark.parametrize(("passes", "reductions"), [((SHARDED,) * 4, 4), ((PUT_OFF, PUT_OFF, SHARDED), 1)])
def test_passes_that_reduce_a_sharded_models_gradients_are_counted(passes, reductions: int) -> None:
    assert watch(*passes).reductions == reductions


def test_a_module_of_fully_shard_says_whether_its_passes_reduce() -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("torch before 2.6")
    with open_lone_rank():
        model = fsdp.fully_shard(torch.nn.Linear(2, 2))
        found = [reduces_gradients(model)]
        model.set_requires_gradient_sync(False)
        assert [*found, reduces_gradients(model)] == [True, False]


def test_gradients_that_are_read_before_the_last_exchange_of_a_step_are_noted() -> None:
    steps = shared_steps.SharedSteps()
    for reads_early in (False, True):
        for place in range(4):
            steps.note_forward(EXCHANGING)
            steps.note_backward()
            if reads_early or place == 3:
                steps.note_read()
        steps.note_update()
        assert steps.reads_between is reads_early
