"""What launches teach of the next one: how much they differ."""

import math
import random

import pytest

from advisor.tuning.measure.pooling import (
    UNKNOWN_LUCK,
    Pooled,
    learn_luck,
    mix,
    pool_launches,
)


def draw(luck: float, strategies: int, launches: int, dice: random.Random) -> list[list[tuple[float, float]]]:
    return [
        [(1.0 + dice.gauss(0.0, math.hypot(luck, 0.003)), 0.003) for _ in range(launches)]
        for _ in range(strategies)
    ]


def test_nothing_seen_is_unknown() -> None:
    assert learn_luck([], 10.0) == UNKNOWN_LUCK
    assert learn_luck([[(0.1, 0.01)]], 10.0) == UNKNOWN_LUCK


@pytest.mark.parametrize("luck", [0.003, 0.01, 0.03])
def test_launches_of_other_strategies_teach_how_much_they_differ(luck: float) -> None:
    dice = random.Random(1)
    found = [learn_luck(draw(luck, 6, 4, dice), 10.0) for _ in range(40)]

    typical = sorted(f.spread for f in found)[20]
    # What is known counts for ten degrees of freedom, what was believed before for two.
    expected = math.sqrt((10.0 * luck**2 + 2.0 * UNKNOWN_LUCK.spread**2) / 12.0)
    assert typical == pytest.approx(expected, rel=0.2)
    assert all(UNKNOWN_LUCK.freedom < f.freedom < 14.0 for f in found)


def test_errors_within_launches_are_no_luck() -> None:
    dice = random.Random(2)
    noisy = [[(dice.gauss(0.0, 0.03), 0.03) for _ in range(4)] for _ in range(6)]

    assert learn_luck(noisy, 10.0).spread < 0.02


def test_known_launches_narrow_the_interval() -> None:
    known = learn_luck(draw(0.003, 6, 4, random.Random(3)), 10.0)
    launches = ([0.03, 0.031], [0.003, 0.003], [30.0, 30.0], [50, 50])

    wide, narrow = (pool_launches(*launches, luck).interval(0.05) for luck in (UNKNOWN_LUCK, known))
    assert narrow[1] - narrow[0] < 0.6 * (wide[1] - wide[0])


def test_an_interval_of_a_mixture_leaves_half_of_the_level_on_either_side() -> None:
    def part(mean: float, spread: float) -> Pooled:
        return pool_launches([mean, mean], [spread, spread], [30.0, 30.0], [50, 50])

    mixed = mix([(0.9, part(0.03, 0.001)), (0.1, part(-0.4, 0.02))])
    low, high = mixed.interval(0.05)

    assert mixed.probability_below(low) == pytest.approx(0.025, abs=1e-4)
    assert mixed.probability_below(high) == pytest.approx(0.975, abs=1e-4)
    assert low < -0.3, "a tenth is far away, and the interval reaches it"
