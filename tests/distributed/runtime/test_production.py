"""`advisor run`: a real training, launched by the user's own launcher, under a strategy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from advisor.protocol.answers.strategy_file import read_strategy_file
from agent.production.plan import make_plan

from .fake_agent import ABOUT_CPUS, BACKEND, DEVICE, HIDE_CARDS, SCRIPTS, launch

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed

TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")
EXACT = {
    "fuse_all_reduce_ops": "off",
    "nccl_comm_num": 2,
    "num_iteration_per_drop_scope": 30,
    "loader_num_workers": 1,
}


def run(
    folder: Path, options: Sequence[str], command: Sequence[str], **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("ADVISOR_", "RANK", "WORLD_SIZE"))
    }
    environment |= {"OUT": str(folder), "OMP_NUM_THREADS": "1", **HIDE_CARDS, **variables}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    words = [sys.executable, "-P", "-m", "agent.production", *options, "--", *command]
    try:
        return subprocess.run(
            words, cwd=SCRIPTS, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
    except subprocess.TimeoutExpired as expired:
        wrote = (expired.stderr or b"").decode() if isinstance(expired.stderr, bytes) else expired.stderr
        pytest.fail(f"The training did not end; each rank's stacks after 90 s are in what it wrote:\n{wrote}")


def settings(changes: dict[str, Any]) -> list[str]:
    return [word for knob, value in changes.items() for word in ("--set", f"{knob}={value}")]


def steer(folder: Path, changes: dict[str, Any], *words: str, report: Path | None = None) -> str:
    """The same on forked ranks, in the environment that `advisor run` gives the command; return what they wrote.

    Not with several threads: a process that is forked from one that has computed hangs in them.
    """
    plan = make_plan(None, settings(changes)[1::2], ())
    session = launch(folder, ["plain.py", *words], variables=plan.build_environment({}, report, None))
    assert session.code == 0, session.log
    return session.log


def steer_drifting(folder: Path, *words: str, copies: bool = False) -> str:
    plan = make_plan(None, ["fuse_all_reduce_ops=off", "sync_nccl_allreduce=on"], ())
    environment = plan.build_environment({}, folder / "report.json", None, copies=copies)
    session = launch(folder, ["drifting.py", *words], variables=environment)
    assert session.code == 0, session.log
    return session.log


@ABOUT_CPUS
def test_layers_that_were_frozen_at_the_switch_are_reduced_once_they_train(tmp_path: Path) -> None:
    told = steer_drifting(tmp_path, "--steady")
    assert "2 of 2 advised settings are in force on every rank." in told
    assert "apart by 0.000" in told
    assert "taken back" not in told


@ABOUT_CPUS
@pytest.mark.parametrize("copies", [False, True])
def test_settings_are_taken_back_where_ranks_that_were_equal_differ(tmp_path: Path, copies: bool) -> None:
    told = steer_drifting(tmp_path, copies=copies)
    assert "2 of 2 advised settings are in force on every rank." in told
    assert (
        "Every setting was taken back: rank 1 holds other values than rank 0 in 1 of 8 parameters (1.weight)"
        in told
    )
    assert ("apart by 0.000" in told) == copies
    assert set(json.loads((tmp_path / "report.json").read_text())["missing"]) == {
        "fuse_all_reduce_ops",
        "sync_nccl_allreduce",
    }


@ABOUT_CPUS
def test_ranks_that_train_apart_by_themselves_are_told_first(tmp_path: Path) -> None:
    told = steer_drifting(tmp_path, "--apart")
    first = next(line for line in told.splitlines() if "fleet advisor" in line)
    assert "Before anything of ours was in force, rank 1 holds other values than rank 0 in 1 of 8" in first
    assert "2 of 2 advised settings are in force" in told
    assert "taken back" not in told


def train_as_it_is(folder: Path, *words: str) -> None:
    """The same script without us."""
    found = launch(folder, ["plain.py", *words], patched=False)
    assert found.code == 0, found.log


def test_exact_strategy_is_in_force_and_the_training_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    train = [*TORCHRUN, "plain.py", "--steps", "140", "--name"]
    report = tmp_path / "report.json"
    steered = run(tmp_path, [*settings(EXACT), "--report", str(report)], [*train, "steered"])
    assert steered.returncode == 0, steered.stderr
    train_as_it_is(tmp_path, "--steps", "140", "--name", "plain")
    found = json.loads(report.read_text())
    assert set(found["in_force"]) == set(EXACT), found["missing"]
    assert "4 of 4 advised settings are in force on every rank." in steered.stderr
    for rank in range(2):
        for what in ("losses", "final"):
            both = [(tmp_path / f"{name}.{what}.{rank}").read_text() for name in ("steered", "plain")]
            assert both[0] == both[1], what


def test_what_needs_no_model_is_in_force_where_gradients_are_averaged_by_hand(tmp_path: Path) -> None:
    changes = {"num_threads": 1, "num_iteration_per_drop_scope": 20, "fuse_grad_size_in_MB": 1}
    plan = make_plan(None, settings(changes)[1::2], ())
    words = ["no_ddp.py", "--in-a-group", "--by-hand", "--long"]
    told = launch(tmp_path, words, variables=plan.build_environment({}, None, None)).log
    assert told.count("The strategy is not in force. The script has made 50 optimizer steps without") == 1
    assert (
        "num_threads is in force all the same, on each rank by itself: torch.get_num_threads() is 1." in told
    )
    assert "num_iteration_per_drop_scope is in force all the same" in told
    assert "fuse_grad_size_in_MB is" not in told


def test_a_parameter_that_is_unused_later_is_told_and_no_bit_of_the_training_is_another(
    tmp_path: Path,
) -> None:
    train = ["--steps", "32", "--model", "late", "--find-unused", "--name"]
    told = steer(tmp_path, {"find_unused_parameters": "off"}, *train, "off")
    assert "  find_unused_parameters off: DDP searched no graph in 1" in told
    assert "on rank 1 branches.1.weight, branches.1.bias got no gradient in a step" in told
    train_as_it_is(tmp_path, *train, "plain")
    for rank in range(2):
        for what in ("losses", "final"):
            both = [(tmp_path / f"{name}.{what}.{rank}").read_text() for name in ("off", "plain")]
            assert both[0] == both[1], what


def test_strategy_that_changes_the_training_is_in_force_as_a_whole(tmp_path: Path) -> None:
    changes = {
        **EXACT,
        "fp16_allreduce": "on",
        "fp16_allreduce_dtype": "bf16",
        "fuse_all_optimizer_ops": "on",
        "gradient_merge": "on",
        "gradient_merge_k_steps": 2,
    }
    report = tmp_path / "report.json"
    told = steer(tmp_path, changes, "--adam", "--steps", "160", "--tell-boundaries", report=report)
    assert int((tmp_path / "run.boundaries.0").read_text()) > 150, "every second step is a merged one"
    assert set(json.loads(report.read_text())["in_force"]) == set(changes), told


def test_bucket_size_of_a_static_graph_stands_when_the_model_is_wrapped(tmp_path: Path) -> None:
    strategy = {
        "job_id": "j", "job_name": "static", "date": "2026-11-22T00:00:00Z", "verdict": "change", "headline": "Faster.",
        "gain": None, "allowed": "exact", "effect": "exact", "changes": {"fuse_grad_size_in_MB": 0.02}, "strategy": {},
        "baseline": {"fuse_grad_size_in_MB": 25.0}, "provenance": {}, "cluster": "", "software": {},
        "holds_for": {
            "backend": BACKEND, "device": DEVICE, "world_size": 8, "local_world_size": 8,
            "gradient_bytes": 69160, "parameter_tensors": 10, "layers": 5, "batch_size_per_rank": 8,
            "torch_version": "1.0.0", "ddp": {"static_graph": True},
        },
    }  # fmt: skip
    plan = make_plan(read_strategy_file(json.dumps(strategy)), (), ())
    assert plan.headline == "job static of 2026-11-22: Faster."
    words = ["plain.py", "--static-graph", "--steps", "60"]
    told = launch(tmp_path, words, variables=plan.build_environment({}, None, None)).log
    assert "1 of 1 advised settings are in force" in told
    assert "measured with 8 ranks, here are 2" in told
    assert "measured under torch 1.0.0" in told
    assert "gradients a step" not in told


@ABOUT_CPUS
def test_what_cannot_be_put_in_force_is_said_and_the_rest_is(tmp_path: Path) -> None:
    changes = {"num_iteration_per_drop_scope": 20, "sync_batch_norm": "on"}
    told = steer(tmp_path, changes, "--model", "conv", "--steps", "60", "--tell-boundaries")
    assert "1 of 2 advised settings are in force" in told
    assert "NOT in force: sync_batch_norm. The job trains on CPU" in told
    assert len((tmp_path / "run.losses.0").read_text().splitlines()) == 60


def test_training_that_ends_before_the_proof_says_so(tmp_path: Path) -> None:
    told = steer(tmp_path, {"num_iteration_per_drop_scope": 20}, "--steps", "6")
    assert told.count("ended before it could be proved") == 1


@pytest.mark.alone
def test_watched_training_tells_that_it_became_slow_and_why(tmp_path: Path) -> None:
    file = tmp_path / "watch.jsonl"
    options = ["--watch", "--watch-file", str(file), "--watch-seconds", "0.2"]
    train = [*TORCHRUN, "plain.py", "--steps", "420", "--slow-from", "330"]
    found = run(tmp_path, options, train)
    assert found.returncode == 0, found.stderr
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len([line for line in lines if "event" not in line]) >= 4
    assert found.stderr.count("below what was usual in this run") == 1, found.stderr
    assert "for data" in found.stderr


@pytest.mark.alone
def test_training_that_tunes_itself_goes_on_faster_and_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    """Steps are 20 ms longer while Python collects garbage by itself: its intervals are what there is to find.

    Threads stay as they are: on some processors another number of them rounds otherwise.
    """
    train, slow = [*TORCHRUN, "plain.py", "--steps"], ["--sleep", "0.02", "--slow-collector"]
    output = tmp_path / "online.json"
    options = ["--tune", "--leave", "num_threads", "--minutes", "0.3", "--output", str(output)]
    tuned = run(tmp_path, options, [*train, "1300", *slow, "--name", "tuned"])
    assert tuned.returncode == 0, tuned.stderr
    found = json.loads(output.read_text())
    assert found["changes"].get("num_iteration_per_drop_scope", 1) > 1, (found["headline"], tuned.stderr)
    assert found["gain"]["low"] > 1.2
    train_as_it_is(tmp_path, "--steps", "1300", "--name", "plain")
    for rank in range(2):
        for what in ("losses", "final"):
            both = [(tmp_path / f"{name}.{what}.{rank}").read_text() for name in ("tuned", "plain")]
            assert both[0] == both[1], what
    again = run(tmp_path, ["--strategy", str(output)], [*train, "400", "--name", "again"])
    assert "advised settings are in force on every rank." in again.stderr


@pytest.mark.calm
def test_tuning_starts_from_the_strategy_that_it_is_given(tmp_path: Path) -> None:
    train = [*TORCHRUN, "plain.py", "--steps", "1200", "--sleep", "0.01", "--slow-collector", "--name", "on"]
    output = tmp_path / "online.json"
    start = ["--set", "num_iteration_per_drop_scope=30", "--set", "fuse_all_reduce_ops=off"]
    options = ["--tune", *start, "--leave", "num_threads", "--minutes", "0.1", "--output", str(output)]
    tuned = run(tmp_path, options, train)
    assert tuned.returncode == 0, tuned.stderr
    assert (
        "from fuse_all_reduce_ops off" in tuned.stderr
        or "from num_iteration_per_drop_scope 30" in tuned.stderr
    )
    assert "over the strategy that it started with" in tuned.stderr or "nothing to change" in tuned.stderr
    found = json.loads(output.read_text())
    assert set(found["changes"]) >= {"num_iteration_per_drop_scope", "fuse_all_reduce_ops"}
    assert "advised settings are in force on every rank." in tuned.stderr, (
        "goes on under what it started with"
    )


def test_training_whose_tuner_dies_goes_on_as_it_was(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "sleep 1\npkill -f agent.production.tuner.*kill-me || echo not found\n"
        "torchrun --standalone --nproc-per-node 2 plain.py --steps 40\n"
    )
    options = ["--tune", "--output", str(tmp_path / "kill-me.json")]
    found = run(tmp_path, options, ["bash", str(script)])
    assert found.returncode == 0, found.stderr
    assert "not found" not in found.stdout
    assert "the training goes on as it was" in found.stderr
    assert len((tmp_path / "run.losses.1").read_text().splitlines()) == 40


def test_the_command_keeps_its_exit_code_and_its_trackers(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        'python -c \'import torch, os; print("wandb", os.environ.get("WANDB_MODE"))\'\nexit 7\n'
    )
    found = run(tmp_path, settings({"num_threads": 2}), ["bash", str(script)])
    assert (found.returncode, found.stdout) == (7, "wandb None\n")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "Say what to run under"),
        (["--set", "warp=1"], "warp: no such knob"),
        (["--set", "num_threads"], "write KNOB=VALUE"),
        (["--set", "num_threads=many"], "num_threads"),
        (["--set", "num_threads=2", "--leave", "amp"], "the strategy does not set it"),
        (["--strategy", "missing.json"], "missing.json cannot be read"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_starts(
    options: list[str], sentence: str, tmp_path: Path
) -> None:
    found = run(tmp_path, options, ["touch", str(tmp_path / "started")])
    assert found.returncode in (2, 3)
    assert sentence in found.stderr
    assert "Traceback" not in found.stderr
    assert not (tmp_path / "started").exists()
