"""Surface files: what is read from them, what is refused, and what a replayed block is made of."""

import json
import math
import random
import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from record_surface import add_pass
from recorded_surface import RecordedSurface
from surface_model import Cell
from surfaces import SurfaceError, load_surface, rate_of, read_surface

from advisor.protocol.measured.trials import Outcome

ROOT = Path(__file__).parents[3]
BASELINE = {"fuse_grad_size_in_MB": 25, "nccl_comm_num": 1, "localsgd": False, "localsgd_k_steps": 1}


def surface_of(*cells: dict[str, Any], **fields: Any) -> RecordedSurface:
    """A surface over bucket sizes and communicators."""
    knobs = {"fuse_grad_size_in_MB": [1, 5, 25], "nccl_comm_num": [1, 2]}
    return read_surface({"knobs": knobs, "baseline": BASELINE, "cells": list(cells), **fields})


def cell(step_s: float, *changes: tuple[str, Any], **block: Any) -> dict[str, Any]:
    """A cell of one block of equal steps."""
    return {"changes": dict(changes), "blocks": [{"step_time_s": [step_s] * 24, **block}]}


def race_against_baseline(surface: RecordedSurface, cell: Cell, dice: random.Random) -> float:
    """ln(throughput over the baseline's) in one race of a fresh launch."""
    launch = surface.launch(dice)
    arms = [surface.find({}), cell]
    heat = launch.race(arms)
    rates = [
        rate_of(launch.describe(shown, [heat.step(arm, since) for since in range(1, 25)]))
        for arm, shown in enumerate(arms)
    ]
    return rates[1] - rates[0]


def test_the_example_of_the_documentation_is_a_surface(tmp_path: Path) -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text()
    example = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert example
    path = tmp_path / "example.json"
    path.write_text(example[1])
    surface = load_surface(path)
    assert surface.best.changes == {"fuse_grad_size_in_MB": 5.0, "fp16_allreduce": True}
    failed = surface.find({"fuse_grad_size_in_MB": 1.0, "fp16_allreduce": True})
    assert failed.outcome is Outcome.OUT_OF_MEMORY
    assert surface.regret(failed.changes) == 1.0


def test_the_truth_is_against_the_neighbouring_baseline_blocks() -> None:
    drifting = [
        {"step_time_s": [t] * 24, "session": 0, "order": o} for t, o in ((0.1, 0), (0.2, 2), (0.1, 4))
    ]
    surface = surface_of(
        {"changes": {}, "blocks": drifting},
        cell(0.12, ("fuse_grad_size_in_MB", 5), session=0, order=1),
        cell(0.12, ("nccl_comm_num", 2), anchor_log_ratio=0.25),
    )
    truth = surface.find({"fuse_grad_size_in_MB": 5.0}).truth
    # What a single block shows is drawn a little towards what the others say.
    assert truth == pytest.approx((math.log(0.1) + math.log(0.2)) / 2 - math.log(0.12), abs=0.02)
    other = surface.find({"nccl_comm_num": 2, "sync_nccl_allreduce": False}).truth
    assert other == pytest.approx(0.25, abs=0.02)
    assert surface.regret({}) == pytest.approx(-math.expm1(-(other or 0.0)))


def test_a_missing_strategy_is_answered_by_the_nearest_one_and_says_so() -> None:
    surface = surface_of(cell(0.1), cell(0.08, ("fuse_grad_size_in_MB", 1)), cell(0.09, ("nccl_comm_num", 2)))
    missing = {"fuse_grad_size_in_MB": 1.0, "nccl_comm_num": 2}
    assert surface.find(missing).changes == {"fuse_grad_size_in_MB": 1.0}
    assert "was not recorded" in surface.note(missing)
    assert surface.note({"fuse_grad_size_in_MB": 1.0}) == ""


def test_idle_knobs_make_no_other_cell() -> None:
    data = {
        "knobs": {"localsgd": [False, True], "localsgd_k_steps": [2, 4]}, "baseline": BASELINE,
        "cells": [cell(0.1), cell(0.05, ("localsgd", True), ("localsgd_k_steps", 4))],
    }  # fmt: skip
    surface = read_surface(data)
    assert surface.find({"localsgd_k_steps": 4}).changes == {}
    assert surface.changes_at({"localsgd": 0, "localsgd_k_steps": 2}) == {}


def test_the_blocks_of_a_cell_scatter_as_much_as_its_repeats() -> None:
    dice = random.Random(7)
    deviations = [0.3 + dice.gauss(0.0, 0.02 * math.sqrt(1.5)) for _ in range(40)]
    repeats = [
        {"step_time_s": [0.1] * 24, "anchor_log_ratio": d, "order": 3 * i} for i, d in enumerate(deviations)
    ]
    blocks = [{"step_time_s": [0.1] * 24, "order": 3 * i + 1} for i in range(40)]
    baselines = {"changes": {}, "blocks": blocks}
    surface = surface_of(baselines, {"changes": {"nccl_comm_num": 2}, "blocks": repeats})
    found = surface.find({"nccl_comm_num": 2})
    drawn = [race_against_baseline(surface, found, dice) for _ in range(400)]
    # Both arms have a luck of their own.
    assert stdev(drawn) == pytest.approx(math.sqrt(2.0) * surface.run_noise, rel=0.2)
    assert surface.run_noise == pytest.approx(0.02, rel=0.3)
    assert fmean(drawn) == pytest.approx(found.truth, abs=0.01)


def test_arms_of_a_race_keep_their_true_distance() -> None:
    surface = surface_of(cell(0.1), cell(0.08, ("nccl_comm_num", 2), anchor_log_ratio=0.25))
    apart = race_against_baseline(surface, surface.find({"nccl_comm_num": 2}), random.Random(3))
    # A race knows the distance with the luck of both arms.
    assert apart == pytest.approx(0.25, abs=4 * surface.run_noise)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"knobs": {}}, "knobs is missing"),
        ({"baseline": {"nccl_comm_num": 1}}, "baseline.fuse_grad_size_in_MB is missing"),
        ({"knobs": {"bucket": [1]}}, "knobs.bucket: no such knob"),
        ({"cells": [cell(0.1), cell(0.1, ("nccl_comm_num", 3))]}, "not among knobs.nccl_comm_num"),
        ({"cells": [cell(0.1, ("nccl_comm_num", 2))]}, "no measured baseline"),
        ({"cells": [cell(0.0)]}, r"cells\[0\].blocks\[0\].step_time_s"),
        (
            {"cells": [cell(0.1), {"changes": {"nccl_comm_num": 2}, "blocks": []}]},
            r"cells\[1\].blocks is empty",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_its_field(change: dict[str, Any], sentence: str) -> None:
    data = {
        "knobs": {"fuse_grad_size_in_MB": [1, 5, 25], "nccl_comm_num": [1, 2]}, "baseline": BASELINE,
        "cells": [cell(0.1)],
    }  # fmt: skip
    with pytest.raises(SurfaceError, match=sentence):
        read_surface({**data, **change})


def test_every_stored_surface_can_be_read() -> None:
    for path in sorted((ROOT / "benchmarks" / "surfaces").glob("*.json")):
        surface = load_surface(path)
        assert surface.best.truth is not None
        assert json.loads(path.read_text())["how"]


def test_a_recorded_arm_that_came_to_what_another_runs_with_has_that_ones_ratio() -> None:
    steps = {"samples_per_step": 8, "step_time_s": [0.1] * 24, "steps": 24, "wall_s": 2.4}
    arms = {
        "0": steps,
        "1": {**steps, "step_time_s": [0.05] * 24},
        "2": {**steps, "step_time_s": [], "same_as": "1"},
        "3": {**steps, "step_time_s": [], "same_as": "0"},
        "4": {**steps, "step_time_s": [], "relaunch_needed": "it started with another"},
    }
    race = [{}, *({"nccl_comm_num": count} for count in (2, 3, 4, 5))]
    found = add_pass({"cells": []}, [race], {"results": [arms]}, number=0)["cells"]
    ratios = {c["changes"].get("nccl_comm_num"): [b["anchor_log_ratio"] for b in c["blocks"]] for c in found}
    twice = [pytest.approx(math.log(2.0), abs=1e-4)]
    assert ratios == {None: [0.0], 2: twice, 3: twice, 4: [0.0], 5: []}
    assert [c["outcome"] for c in found] == ["finished"] * 4 + ["ineffective"]
