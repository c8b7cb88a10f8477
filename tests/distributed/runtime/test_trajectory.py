"""Exact knobs must not change training: unchanged scripts, switched again and again, end in the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .fake_agent import DEVICE, LONGER, Session, launch, measure

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.distributed

STEPS = 30 * LONGER
RUNS = {
    "conv": "--model conv --views --accumulate 2",
    "transformer": "--model transformer --autocast --adam",
    # NCCL reduces no sparse gradients.
    **({"recommender": "--model recommender"} if DEVICE == "cpu" else {}),
    "static": "--model mlp --static-graph --keep-grads",
    "unused": "--model mlp --find-unused --bucket-cap-mb 0.03",
}
QUICK: dict[str, Any] = {"warmup_steps": 1, "min_steps": 2, "max_steps": 2, "profile_steps": 0}
SWITCHES = [
    {"fuse_grad_size_in_MB": 0.01, "last_comm_group_size_MB": 0.005},
    {"fuse_all_reduce_ops": False},
    {"nccl_comm_num": 2, "fuse_grad_size_in_MB": 0.01},
    {},
    {"sync_nccl_allreduce": True, "nccl_comm_num": 2, "fuse_grad_size_in_MB": 0.02},
]


def name_steps(run: str, steps: int) -> list[str]:
    return ["plain.py", "--name", run, "--steps", str(steps), *RUNS[run].split()]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs without the runtime, in one launch."""
    folder = tmp_path_factory.mktemp("reference")
    script = ["plain.py"]
    for run in RUNS:
        script += ([] if len(script) == 1 else ["--then"]) + name_steps(run, STEPS)[1:]
    session = launch(folder, script, patched=False)
    assert session.code == 0, session.log
    return folder


def tune(folder: Path, script: list[str], switches: list[dict[str, Any]], **options: Any) -> Session:
    blocks = [measure(str(index), overrides, **QUICK) for index, overrides in enumerate(switches)]
    session = launch(folder, script, [*blocks, measure("rest", warmup_steps=1000)], **options)
    assert session.code == 0, session.log
    return session


@pytest.mark.parametrize("run", list(RUNS))
def test_two_ranks_end_in_the_same_bits_when_switched(run: str, reference: Path, tmp_path: Path) -> None:
    session = tune(tmp_path, name_steps(run, STEPS), SWITCHES)
    for rank in range(2):
        for what in ("losses", "final"):
            name = f"{run}.{what}.{rank}"
            assert (tmp_path / name).read_text() == (reference / name).read_text(), session.log
    for index, overrides in enumerate(SWITCHES):
        result = session.result(str(index))
        assert set(result["consumed"]) | set(result["not_consumed"]) == set(overrides)
        assert not set(result["not_consumed"]) - {"nccl_comm_num"}, result["not_consumed"]
    assert session.result("1")["bucket_bytes"] != session.result("3")["bucket_bytes"]
    assert session.messages[-1]["kind"] == "script_ended"
    if run == "conv":
        assert session.hello["facts"]["microbatches_per_step"] == 2
        assert session.hello["facts"]["batch_size_per_rank"] == 16
    if run == "recommender":
        assert session.hello["facts"]["sparse_gradients"]
        assert session.hello["facts"]["optimizers"] == ["SparseAdam", "SGD"]
        assert "sparse gradients" in session.hello["refusals"]["dgc"]
    if run == "transformer":
        assert session.hello["baseline"]["amp"] is True
        assert "in bfloat16 under torch.autocast already" in session.hello["refusals"]["amp"]
    if run == "unused":
        assert session.hello["baseline"]["last_comm_group_size_MB"] == pytest.approx(0.03, rel=1e-3)


def test_four_ranks_in_two_levels_agree_within_rounding(tmp_path: Path) -> None:
    script = ["plain.py", "--name", "four", "--steps", "44", "--model", "mlp"]
    plain, tuned = tmp_path / "plain", tmp_path / "tuned"
    plain.mkdir()
    tuned.mkdir()
    assert launch(plain, script, patched=False, ranks=4).code == 0
    levels = {"use_hierarchical_allreduce": True, "hierarchical_allreduce_inter_nranks": 2}
    switches = [
        levels,
        {},
        {**levels, "nccl_comm_num": 2, "fuse_grad_size_in_MB": 0.01},
        {**levels, "sync_nccl_allreduce": True},
        {**levels, "hierarchical_allreduce_gloo_between": True},
    ]
    wrong = [
        {**levels, "hierarchical_allreduce_inter_nranks": 3},
        {"hierarchical_allreduce_gloo_between": True},
    ]
    session = tune(tuned, script, [*switches, *wrong], ranks=4)
    expected = torch.load(plain / "four.model.0")
    found = torch.load(tuned / "four.model.0")
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)
    for index in (0, 2, 3, 4):
        assert "two levels of 2 ranks" in session.result(str(index))["consumed"]["use_hierarchical_allreduce"]
        assert not session.result(str(index))["not_consumed"]
    assert "gloo between them" in session.result("4")["consumed"]["hierarchical_allreduce_gloo_between"]
    assert "do not split 4 ranks" in session.result("5")["not_consumed"]["use_hierarchical_allreduce"]
    assert "there are no levels" in session.result("6")["not_consumed"]["hierarchical_allreduce_gloo_between"]
    digests = {(tuned / f"four.final.{rank}").read_text() for rank in range(4)}
    assert len(digests) == 1
