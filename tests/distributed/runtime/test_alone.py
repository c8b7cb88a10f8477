"""One rank: a plain script without a launcher, a group or a wrapped model is measured, raced and steered."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agent.production.plan import make_plan

from .fake_agent import ABOUT_CPUS, launch, race

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed

ARMS = {
    "base": {},
    "threads": {"num_threads": 2},
    "garbage": {"num_iteration_per_drop_scope": 4},
    "loader": {"loader_num_workers": 1},
    "fused": {"fuse_all_optimizer_ops": True},
    "amp": {"amp": True, "amp_dtype": "bf16"},
    "buckets": {"fuse_grad_size_in_MB": 1.0},
}


@ABOUT_CPUS
@pytest.mark.parametrize(
    "words", [(), ("--in-parts",), ("--group",)], ids=["as a whole", "in parts", "in a group of its own"]
)
def test_arms_race_in_a_script_that_python_starts(words: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, "alone.py", *words]
    session = launch(tmp_path, command, [race(ARMS, ceiling=True)], injection="command")
    facts = session.hello["facts"]
    assert (facts["world_size"], facts["batch_size_per_rank"], facts["microbatches_per_step"]) == (1, 12, 2)
    assert facts["dataloader"]["num_workers"] == 0
    for arm, overrides in ARMS.items():
        result = session.result(arm)
        if arm == "buckets":
            assert set(result["not_consumed"]) == set(overrides)
        else:
            assert set(result["consumed"]) == set(overrides), (arm, result["not_consumed"])
    # Two micro-batches of six rows: both layers forward, and what backward multiplies again.
    counted = session.result("base")["calibration"]["ceiling"]["operations"]
    assert counted == 2 * 2 * 6 * (2 * 8 * 32 + 3 * 32 * 4)
    phases = session.result("base")["phases"]
    assert phases["exposed_comm_s"] == phases["wait_s"] == phases["collectives_s"] == 0.0
    assert min(phases["forward_s"], phases["backward_s"], phases["optimizer_s"]) > 0.0


def test_one_rank_under_torchrun_communicates_nothing_though_its_model_is_wrapped(tmp_path: Path) -> None:
    arms = {"base": {}, "garbage": {"num_iteration_per_drop_scope": 4}}
    session = launch(tmp_path, ["plain.py", "--steps", "60"], [race(arms, calibrate=True)], ranks=1)
    assert session.hello["facts"]["world_size"] == 1
    assert session.result("base")["phases"]["exposed_comm_s"] == 0.0
    assert set(session.result("garbage")["consumed"]) == {"num_iteration_per_drop_scope"}


@ABOUT_CPUS
def test_a_compiled_arm_goes_back_to_the_script_as_it_was_written(tmp_path: Path) -> None:
    arms = {"base": {}, "compiled": {"fuse_elewise_add_act_ops": True}}
    session = launch(tmp_path, ["alone.py"], [race(arms)], torchrun=False, timeout_s=240)
    consumed = session.result("compiled")["consumed"]
    assert "ran" in consumed["fuse_elewise_add_act_ops"], session.result("compiled")
    assert session.result("base")["steps"] == 4


@ABOUT_CPUS
def test_a_strategy_is_in_force_in_a_plain_script(tmp_path: Path) -> None:
    plan = make_plan(
        None, ["num_iteration_per_drop_scope=4", "loader_num_workers=1", "fuse_grad_size_in_MB=1"], ()
    )
    variables = plan.build_environment({}, None, None)
    session = launch(tmp_path, [sys.executable, "alone.py"], injection="command", variables=variables)
    assert session.code == 0, session.log
    assert "2 of 3 advised settings are in force on every rank." in session.log
    assert "NOT in force: fuse_grad_size_in_MB. One rank trains the model" in session.log


def test_a_helper_that_trains_for_a_moment_is_no_rank(tmp_path: Path) -> None:
    session = launch(tmp_path, [sys.executable, "one_process.py", "3", "0", "alone"], [], injection="command")
    assert (session.code, session.messages) == (0, []), session.log
