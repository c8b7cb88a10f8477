"""Throughput against loss of what was measured."""

from dataclasses import replace

import pytest

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.measured.trials import Purpose
from advisor.tuning.explain.pareto import build_pareto
from tests.unit.tuning.raced import BASE, Raced
from tests.unit.tuning.trainings import LOCAL, MIDDLE, Training

BUCKETS: dict[str, Value] = {"fuse_grad_size_in_MB": 4.0}
THREADS: dict[str, Value] = {"num_threads": 2}


def searched(efficiency: float, speed: float, noise: float = 0.002) -> Training:
    """A baseline, two exact strategies and local SGD, each measured once by the search."""
    training = Training(efficiency=efficiency, speed=speed, noise=noise)
    training.trials = training.trials[:1]
    training.launch()
    training.race(0)
    training.race(0, *(training.add_trial(Purpose.SEARCH, changes) for changes in (BUCKETS, THREADS)))
    training.race(0, training.add_trial(Purpose.SEARCH, LOCAL))
    return training


def test_a_faster_strategy_with_a_worse_loss_shares_the_front_with_the_harmless_ones() -> None:
    points = build_pareto(searched(efficiency=0.5, speed=2.0).record)

    fastest = points[0]
    assert fastest.changes == LOCAL
    assert fastest.effect is Effect.CONVERGENCE
    assert fastest.throughput_ratio == pytest.approx(2.0, rel=0.02)
    assert fastest.loss_change == pytest.approx(0.5 * 0.004 * MIDDLE, rel=0.1)
    assert fastest.loss_error is not None
    assert fastest.on_front
    assert not fastest.confirmed
    exact = {point.trial_number: point for point in points if point.effect is Effect.EXACT}
    assert {point.loss_change for point in exact.values()} == {0.0}
    assert exact[0].throughput_ratio == 1.0
    assert any(point.on_front for point in exact.values())


def test_what_another_strategy_beats_in_both_is_not_on_the_front() -> None:
    points = build_pareto(searched(efficiency=0.5, speed=0.8).record)

    assert points[-1].changes == LOCAL
    assert not points[-1].on_front


def test_a_loss_change_within_its_error_counts_as_none() -> None:
    points = build_pareto(searched(efficiency=1.0, speed=2.0, noise=0.2).record)

    # As good as the baseline for all one can tell, and faster: nothing else is left on the front.
    assert [point.changes for point in points if point.on_front] == [LOCAL]


def test_the_confirmations_ratio_stands_in_place_of_the_searchs() -> None:
    training = searched(efficiency=1.0, speed=2.0)
    confirmed = training.add_trial(Purpose.CONFIRM, LOCAL)
    training.speed = 1.5
    for _ in range(2):
        training.launch()
        training.race(0, confirmed)

    points = build_pareto(training.record)

    local = [point for point in points if point.changes == LOCAL]
    assert len(local) == 1
    assert local[0].confirmed
    assert local[0].throughput_ratio == pytest.approx(1.5)


def test_losses_that_were_not_seen_leave_a_point_off_the_front() -> None:
    training = searched(efficiency=1.0, speed=2.0)
    training.blocks = [
        b.model_copy(update={"result": replace(b.result, losses=())}) for b in training.blocks if b.result
    ]

    local = next(p for p in build_pareto(training.record) if p.changes == LOCAL)

    assert local.loss_change is None
    assert not local.on_front


def test_nothing_measured_gives_no_points() -> None:
    assert build_pareto(Training().record) == ()


def test_a_strategy_whose_speed_is_not_known_has_no_place() -> None:
    rough = Raced(spread=3.0).launch().race(BASE).race(BASE, (Purpose.SEARCH, THREADS, 0.2), cycles=3)

    assert [point.changes for point in build_pareto(rough.record)] == [{}]
