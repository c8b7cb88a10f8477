"""Whose slow steps are: the machine's, the script's, or an arm's own."""

import math
import random

import pytest

from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Contrast
from advisor.tuning.measure.contrast import contrast_arms
from advisor.tuning.measure.sequential import look_at
from advisor.tuning.measure.slow_steps import read_slow_steps, settle

CYCLES, SEGMENT = 60, 5


def make_arm(base_s: float, dice: random.Random, slow: float = 0.0, longer_s: float = 0.0) -> BlockResult:
    times = tuple(
        base_s * math.exp(dice.gauss(0.0, 0.02)) + (longer_s if dice.random() < slow else 0.0)
        for _ in range(CYCLES * SEGMENT)
    )
    return BlockResult(
        steps=len(times), step_time_s=times, segments=(SEGMENT,) * CYCLES, samples_per_step=8.0, wall_s=sum(times)
    )  # fmt: skip


def race(
    gain: float, dice: random.Random, own: float = 0.0, both: float = 0.0, longer_s: float = 0.1
) -> Contrast:
    """A strategy of this gain; the shares of its own steps, and of both arms' steps, that are longer."""
    found = contrast_arms(
        make_arm(0.05 / (1.0 + gain), dice, own + both, longer_s), make_arm(0.05, dice, both, longer_s)
    )
    assert found is not None
    return found


def look(launches: list[Contrast], planned: int = 4) -> str | None:
    found = look_at(launches, planned=planned, min_gain=0.01, forced=True)
    assert found is not None
    return found.decision


def test_without_slow_steps_all_readings_are_the_same() -> None:
    readings = read_slow_steps([race(0.05, random.Random(1))])

    assert sum(reading.chance for reading in readings) == pytest.approx(1.0)
    assert [reading.means[0] for reading in readings] == pytest.approx([readings[0].means[0]] * 3)


@pytest.mark.parametrize("seed", range(5))
def test_a_strategy_that_stalls_by_itself_is_told_by_its_total(seed: int) -> None:
    dice = random.Random(seed)
    launches = [race(0.05, dice, own=0.1) for _ in range(3)]

    assert read_slow_steps(launches)[-1].chance > 0.95
    assert look(launches, 3) == "keep", "a tenth of its steps take three times as long: it is slower"
    assert settle(launches[0])[0] < -0.05


@pytest.mark.parametrize("seed", range(5))
def test_slow_steps_that_both_have_are_shared(seed: int) -> None:
    dice = random.Random(seed)
    launches = [race(0.1, dice, both=0.02) for _ in range(4)]

    assert read_slow_steps(launches)[-1].chance < 0.3
    assert look(launches) == "change"


def test_one_launch_that_saw_none_of_the_rare_stalls_does_not_speak_for_the_others() -> None:
    dice = random.Random(3)
    quiet = [race(0.03, dice) for _ in range(2)]
    struck = [race(0.03, dice, own=0.02, longer_s=1.0) for _ in range(2)]

    assert look([*quiet, *struck]) != "change"
    assert read_slow_steps([*quiet, *struck])[-1].chance > 0.1


def test_what_the_script_does_in_every_fiftieth_step_draws_the_ratio_towards_one() -> None:
    found = race(0.5, random.Random(5), both=0.02, longer_s=1.0)

    assert found.per_step is not None
    assert 0.0 < found.per_step < 0.75 * found.mean
