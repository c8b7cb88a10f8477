"""What ranks watched in a calibrating block, brought together; and how far a link sweep goes."""

from __future__ import annotations

import importlib
from dataclasses import asdict

import pytest

pytest.importorskip("torch")
merging = importlib.import_module("fleet_advisor_runtime.calibrating.calibration_results")
measured = importlib.import_module("fleet_advisor_runtime.link.measured")
link_sweep = importlib.import_module("fleet_advisor_runtime.calibrating.link_sweep")

NAN = float("nan")


def test_gradients_come_in_backwards_order_with_the_median_rank() -> None:
    ranks = [
        [[400, 0.03], [40, 0.01], [4, None]],
        [[400, 0.05], [40, 0.012], [4, None]],
        [[400, 0.04], [40, None], [4, None]],
    ]
    assert merging.merge_gradients(ranks) == (
        measured.GradientTiming(40, 0.011),
        measured.GradientTiming(400, 0.04),
    )


def test_very_many_gradients_are_joined_and_no_byte_is_lost() -> None:
    ranks = [[[4, 0.001 * index] for index in range(4500)]]
    found = merging.merge_gradients(ranks)
    assert len(found) == 1500
    assert sum(gradient.bytes for gradient in found) == 4 * 4500
    assert found[0] == measured.GradientTiming(12, 0.002)


def test_a_collective_counts_with_its_slowest_rank() -> None:
    def entry(seconds: float, level: str = "world", concurrent: int = 1) -> dict[str, object]:
        return {"level": level, "ranks": 2, "bytes": 1024, "seconds": seconds, "concurrent": concurrent}

    ranks = [
        [entry(0.1), entry(0.2, concurrent=2), entry(0.3, "across")],
        [entry(0.15), entry(0.1, concurrent=2)],
    ]
    told = [asdict(link) for link in merging.merge_links(ranks)]
    assert told == [entry(0.15), entry(0.2, concurrent=2), entry(0.3, "across")]


def test_noise_leaves_out_steps_that_overflowed_on_any_rank() -> None:
    ranks = [
        [[4.0, 2.0, 8], [NAN, NAN, 8], [6.0, 3.0, 8]],
        [[8.0, 2.0, 8], [9.0, NAN, 8], [2.0, 3.0, 8]],
    ]
    assert merging.merge_noise(ranks) == measured.GradientNoise(
        small_batch=8.0, large_batch=16.0, small_square=5.0, large_square=2.5, steps=2
    )
    assert merging.merge_noise([rank[:2] for rank in ranks]) is None
    assert merging.merge_noise([ranks[0], []]) is None


def test_a_rank_that_did_not_finish_leaves_no_calibration() -> None:
    part = merging.RankCalibration([[4, 0.1]], [], [])
    assert merging.merge_calibrations([part, None]) is None
    assert merging.merge_calibrations([part, part]) == measured.Calibration(
        gradients=(measured.GradientTiming(4, 0.1),)
    )


@pytest.mark.parametrize(
    ("largest", "expected"),
    [
        (1024, [1024]),
        (5000, [1024, 5000]),
        (8192, [1024, 8192]),
        (9000, [1024, 9000]),
        (70000, [1024, 8192, 70000]),
        (64 * 2**20, [1024, 8192, 65536, 524288, 4194304, 33554432, 67108864]),
    ],
)
def test_sizes_grow_by_eight_up_to_the_largest(largest: int, expected: list[int]) -> None:
    assert link_sweep.list_sizes(largest) == expected


@pytest.mark.parametrize(
    ("expected_s", "left_s", "repeats"),
    [
        (1e-4, 1.2, 9),
        (0.01, 1.2, 5),
        (0.1, 1.2, 3),
        (0.3, 1.2, 2),
        (0.8, 1.2, 0),
        (0.3, 0.2, 0),
        (0.0, 1.2, 9),
    ],
)
def test_slow_collectives_are_timed_less_often_or_not_at_all(
    expected_s: float, left_s: float, repeats: int
) -> None:
    assert link_sweep.choose_repeats(expected_s, left_s) == repeats
