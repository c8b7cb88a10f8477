"""Moods are found in rates over time: within a launch, between launches, and not in noise or drift."""

import math
import random

import pytest

from advisor.tuning.measure.moods import Pace, Stretch, cut_stretches, find_border


def run(*levels: tuple[float, int], spread: float = 0.03, seed: int = 1) -> list[Pace]:
    """Paces of half a second: so many at each rate in turn."""
    dice = random.Random(seed)
    return [
        Pace(0.5, math.log(rate) + dice.gauss(0.0, spread)) for rate, count in levels for _ in range(count)
    ]


def part(*launches: list[Pace]) -> float | None:
    border = find_border([stretch for paces in launches for stretch in cut_stretches(paces)])
    return None if border is None else math.exp(border)


def test_stretches_end_where_the_level_changes() -> None:
    found = cut_stretches(run((100.0, 12), (180.0, 9), (100.0, 15)))

    assert [(stretch.first, stretch.count) for stretch in found] == [(0, 12), (12, 9), (21, 15)]
    assert [round(math.exp(stretch.level), -1) for stretch in found] == [100.0, 180.0, 100.0]
    assert sum(stretch.seconds for stretch in found) == pytest.approx(18.0)


def test_one_slow_pace_makes_no_stretch() -> None:
    assert len(cut_stretches(run((100.0, 10), (30.0, 1), (100.0, 10)))) == 1


def test_no_pace_makes_no_stretch() -> None:
    assert cut_stretches([]) == ()
    assert find_border([]) is None
    assert len(cut_stretches([Pace(1.0, 0.0)])) == 1


def test_moods_within_one_launch_are_parted() -> None:
    border = part(run((60.0, 10), (110.0, 10), (250.0, 20), (220.0, 10)))

    assert border is not None
    assert 110.0 < border < 220.0


@pytest.mark.parametrize(
    ("rates", "is_parted"),
    [
        ((52.0, 183.0, 53.0, 181.0), True),
        ((52.0, 183.0), True),
        ((100.0, 101.0, 99.5), False),
        ((100.0, 105.0, 111.0, 117.0), False),
        ((100.0,), False),
    ],
)
def test_moods_between_launches_are_told_from_drift(rates: tuple[float, ...], is_parted: bool) -> None:
    border = part(*(run((rate, 8), seed=number) for number, rate in enumerate(rates)))

    assert (border is not None) == is_parted
    if border is not None:
        assert 53.0 < border < 181.0


def test_level_whose_long_steps_leave_it_no_faster_is_no_mood() -> None:
    """Launches of a demo: at the median 164 and 121 samples/s, over their time 121 and 128."""
    launches = [(53.9, 111.0, 86.0), (26.9, 164.0, 121.0), (27.8, 121.0, 87.0), (11.9, 123.0, 128.0)]
    stretches = [Stretch(0, 9, s, math.log(level), math.log(rate)) for s, level, rate in launches]
    assert find_border(stretches) is None
    # Another border, where the rates part as well, is still found.
    beside = [*stretches, Stretch(0, 9, 21.4, math.log(261.0), math.log(263.0))]
    border = find_border(beside)
    assert border is not None
    assert 164.0 < math.exp(border) < 261.0


def test_noise_and_bursts_of_a_tenth_are_no_moods() -> None:
    for seed in range(10):
        assert part(run((100.0, 60), spread=0.2, seed=seed)) is None
        assert part(run(*[(100.0, 4), (110.0, 4)] * 8, seed=seed)) is None


def test_a_level_of_a_moment_is_no_mood() -> None:
    assert part(run((100.0, 100), (40.0, 3))) is None


def test_short_moods_are_parted_though_some_stretches_lie_between() -> None:
    def stretch(rate: float, seconds: float) -> Stretch:
        return Stretch(0, 5, seconds, math.log(rate), math.log(rate))

    between = [stretch(130.0, 2.0), stretch(150.0, 2.0)]
    border = find_border([*[stretch(100.0, 4.0)] * 5, *between, *[stretch(180.0, 4.0)] * 5])

    assert border is not None
    assert 100.0 < math.exp(border) < 180.0
