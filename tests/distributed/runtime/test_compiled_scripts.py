"""Scripts that compile their model: torch.compile sees them as it did without the runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from .fake_agent import launch, measure, race

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed


def read_frames(folder: Path, name: str) -> int:
    return int((folder / f"{name}.frames.0").read_text())


@pytest.mark.parametrize("where", ["outside", "inside", "around"])
def test_torch_compile_never_traces_the_runtime(where: str, tmp_path: Path) -> None:
    script = ["plain.py", "--steps", "30", "--compile", where]
    bare = launch(tmp_path, [*script, "--name", "bare"], patched=False)
    assert bare.code == 0, bare.log
    measured = launch(tmp_path, [*script, "--name", "measured"], [measure("a", max_steps=60, min_steps=60)])
    assert measured.code == 0, measured.log
    assert read_frames(tmp_path, "measured") <= read_frames(tmp_path, "bare") + 3
    assert (tmp_path / "measured.losses.0").read_text() == (tmp_path / "bare.losses.0").read_text()


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_buckets_that_a_compiled_graph_was_cut_at_ask_for_a_relaunch(where: str, tmp_path: Path) -> None:
    script = ["plain.py", "--steps", "200", "--compile", where]
    arms = {
        "base": {},
        "buckets": {"fuse_grad_size_in_MB": 0.02},
        "layers": {"fuse_grad_size_in_TFLOPS": 1},
        "hook": {"sync_nccl_allreduce": True},
    }
    session = launch(tmp_path, script, [race(arms)])
    assert session.code == 0, session.log
    assert "torch.compile cut the graph" in session.result("buckets")["relaunch_needed"]
    assert "torch.compile cut the graph" in session.hello["refusals"]["fuse_grad_size_in_TFLOPS"]
    assert session.hello["baseline"]["fuse_bn_act_ops"] is True
    assert "script compiles" in session.hello["refusals"]["fuse_elewise_add_act_ops"]
    assert "sync_nccl_allreduce" in session.result("hook")["consumed"]


def test_buckets_of_a_compiled_model_can_be_set_at_launch(tmp_path: Path) -> None:
    session = launch(
        tmp_path,
        ["plain.py", "--steps", "60", "--compile", "inside"],
        [measure("a")],
        variables={"ADVISOR_COLD": '{"fuse_grad_size_in_MB": 0.02}'},
    )
    assert session.code == 0, session.log
    assert "built with caps of" in session.result("a")["consumed"]["fuse_grad_size_in_MB"]
