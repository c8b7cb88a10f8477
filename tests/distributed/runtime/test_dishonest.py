"""Steps that take less because they do less are seen to, on two ranks, by what is weighed after the timed ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from advisor.protocol.measured.results import StepWork
from agent.sessions.control import parse_result

from .fake_agent import launch, measure

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.distributed

HONEST = StepWork(
    # Three products of a batch of eight on each of two ranks, a multiplication and an addition for each weight.
    operations=(2.0 * 2 * 8 * (32 * 64 + 64 * 64 + 64 * 8),) * 4,
    number_format="float32",
    random_numbers=2.0 * 8 * 64,
    backward_passes=1.0,
    with_gradient=1.0,
    moved=1.0,
)
OF_FIRST, ALL = 32 * 64 + 64, 32 * 64 + 64 + 64 * 64 + 64 + 64 * 8 + 8
"""Parameters of the first layer, and of the model."""
LESS_READ = 2.0 * 2 * 8 * (8 * 64 + 64 * 64 + 64 * 8)


def weigh(folder: Path, way: str) -> StepWork:
    block = measure("block", weighs=True, warmup_steps=6)
    session = launch(folder, ["dishonest.py", *([way] if way else [])], [block])
    assert session.code == 0, session.log
    work = parse_result(session.result("block")).work
    assert work is not None, session.log
    return work


def test_an_honest_step_is_weighed_for_what_it_is(tmp_path: Path) -> None:
    work = weigh(tmp_path, "")
    # Of single numbers those that no sample of the batch reaches have no gradient.
    assert 0.8 < work.numbers_with_gradient <= 1.0
    assert work.numbers_moved == 1.0
    assert work.variety == pytest.approx(1.0, abs=0.3)
    assert replace(work, numbers_with_gradient=0.0, numbers_moved=0.0, variety=0.0) == HONEST


@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("crops_inside", {"operations": (LESS_READ,) * 4}),
        ("detaches", {"with_gradient": 1.0 - OF_FIRST / ALL, "moved": 1.0 - OF_FIRST / ALL}),
        ("steps_a_part", {"moved": (64 * 8 + 8) / ALL}),
        ("puts_back", {"moved": 1.0, "numbers_moved": pytest.approx(0.1, abs=0.03)}),
        ("thins_out", {"with_gradient": 1.0, "numbers_with_gradient": pytest.approx(0.1, abs=0.03)}),
        ("learns_nothing", {"moved": 0.0}),
        ("same_shard", {"repeated": 0.5}),
        # Three batches on each rank, of ten that were looked at.
        ("keeps_batches", {"repeated": 0.7}),
        ("autocasts", {"number_format": "bfloat16"}),
        ("never_exchanges", {"ranks_apart": True}),
        ("skips_backward", {"backward_passes": 0.5}),
        # Every second one, with other noise.
        ("echoes", {"repeated": pytest.approx(0.5, abs=0.1), "variety": pytest.approx(1.0, abs=0.3)}),
        ("one_batch", {"variety": pytest.approx(0.05, abs=0.04)}),
        ("clips", {"gradients_read": 1.0, "clipped": 1.0, "kept_beside": 0.0}),
        ("clips_by_hand", {"gradients_read": 1.0, "clipped": 1.0}),
        ("logs_norm", {"gradients_read": 1.0, "clipped": 0.0}),
        ("averages_by_hand", {"gradients_read": 0.0, "clipped": 0.0}),
        ("keeps_averages", {"clipped": 0.0, "kept_beside": 1.0}),
        ("foreach", {"gradients_read": 0.0, "kept_beside": 0.0}),
        ("fused", {"gradients_read": 0.0, "kept_beside": 0.0}),
        ("makes_averages", {"kept_beside": 1.0}),
        ("no_dropout", {"random_numbers": 0.0}),
    ],
)
def test_what_a_step_does_is_seen(tmp_path: Path, way: str, told: dict[str, object]) -> None:
    work = weigh(tmp_path, way)
    for name, value in told.items():
        assert getattr(work, name) == (pytest.approx(value) if isinstance(value, float) else value), name
