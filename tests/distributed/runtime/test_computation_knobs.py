"""The computation knobs in a live session: consumed with proof, exact or close as they claim, undone to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .fake_agent import ABOUT_CPUS, END, Session, launch, measure

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed

PACE: dict[str, Any] = {"warmup_steps": 4, "min_steps": 6, "max_steps": 6, "profile_steps": 0}
OFF = {"fuse_all_optimizer_ops": False}
"""The baseline's own value of an inexact knob: the model is saved and put back, and nothing else happens."""
INEXACT = {
    "fused": {"fuse_all_optimizer_ops": True},
    "compiled": {"fuse_bn_act_ops": True},
    "both": {"fuse_bn_act_ops": True, "fuse_elewise_add_act_ops": True, "fuse_all_optimizer_ops": True},
}
EXACT: list[dict[str, Any]] = [
    {"fuse_grad_size_in_TFLOPS": 2},
    {"num_iteration_per_drop_scope": 2, "batched_grad_copy": True},
    {"fuse_grad_size_in_TFLOPS": 1, "fuse_grad_size_in_MB": 0.01, "nccl_comm_num": 2},
    {},
    {"fuse_grad_size_in_TFLOPS": 3, "num_iteration_per_drop_scope": 3},
    {"bucket_cap_mb_list": "0.001+0.01+0.02"},
]
RUNS = {"conv": "--model conv --views", "unused": "--model mlp --find-unused"}


def name_steps(run: str) -> list[str]:
    return ["--name", run, "--steps", "50", *RUNS[run].split()]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Every inexact knob between two blocks that only save and restore: each begins in the same state, on one batch."""
    blocks = [measure("before", OFF, **PACE)]
    for name, overrides in INEXACT.items():
        blocks += [measure(name, overrides, **PACE), measure(f"after {name}", OFF, **PACE)]
    blocks.append(measure("collecting", {"num_iteration_per_drop_scope": 2}, **PACE))
    gpu = {"sync_batch_norm": True, "cudnn_exhaustive_search": True, "num_iteration_per_run": 3}
    blocks += [measure("gpu", gpu, **PACE), measure("last", OFF, **PACE), END]
    found = launch(tmp_path_factory.mktemp("computation"), ["one_batch.py"], blocks, timeout_s=240)
    assert found.code == 0, found.log
    return found


def read_seen(session: Session, rank: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (session.folder / f"seen.{rank}").read_text().splitlines()]


@pytest.mark.parametrize("name", list(INEXACT))
def test_an_inexact_knob_is_consumed_close_to_the_baseline_and_undone_to_the_bit(
    name: str, session: Session
) -> None:
    before, result = session.result("before"), session.result(name)
    assert set(result["consumed"]) == set(INEXACT[name]), result["not_consumed"]
    assert result["losses"] == pytest.approx(before["losses"], rel=1e-3)
    assert session.result(f"after {name}")["losses"] == before["losses"]
    assert len(set(before["losses"])) == 6


@ABOUT_CPUS
def test_evidence_names_what_really_ran(session: Session) -> None:
    fused = session.result("fused")["consumed"]["fuse_all_optimizer_ops"]
    assert (
        fused
        == "torch.optim.adam._fused_adam ran 6 times in the timed steps (Adam ran as single_tensor before)."
    )
    compiled = session.result("compiled")["consumed"]["fuse_bn_act_ops"]
    assert "which ran 6 times in the timed steps" in compiled
    assert session.result("compiled")["losses"] != session.result("before")["losses"], (
        "another kernel rounds otherwise"
    )
    no_effect = session.result("before")["no_effect"]
    assert "_single_tensor_adam runs in the baseline as well" in no_effect["fuse_all_optimizer_ops"]
    collecting = session.result("collecting")["consumed"]["num_iteration_per_drop_scope"]
    assert (
        collecting
        == "Python's own collector waits for 100,000 new objects; 3 collections between the timed steps."
    )


def test_the_script_itself_sees_each_switch_and_its_undoing(session: Session) -> None:
    for rank in range(2):
        seen = read_seen(session, rank)
        assert {(step["fused"], step["foreach"]) for step in seen} == {(None, None), (True, False)}
        assert sum(step["compiled"] for step in seen) == 2 * (4 + 1 + 6)
        assert sum(not step["collects"] for step in seen) == 4 + 1 + 6
        assert not any(step["children"] for step in seen), (
            "compiler processes would take cores from timed steps"
        )
        last = seen[-1]
        assert (last["fused"], last["foreach"], last["collects"], last["compiled"]) == (
            None,
            None,
            True,
            False,
        )


@ABOUT_CPUS
def test_what_a_cpu_cannot_do_is_refused_with_a_sentence(session: Session) -> None:
    refused = session.result("gpu")["not_consumed"]
    assert set(refused) == {"sync_batch_norm", "cudnn_exhaustive_search", "num_iteration_per_run"}
    assert all("trains on CPU" in sentence for sentence in refused.values())
    assert session.hello["baseline"]["fuse_grad_size_in_TFLOPS"] == 5.0
    assert session.hello["baseline"]["num_iteration_per_drop_scope"] == 1


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every run without the runtime, in one launch."""
    folder = tmp_path_factory.mktemp("reference")
    words = [word for run in RUNS for word in ("--then", *name_steps(run))]
    session = launch(folder, ["plain.py", *words[1:]], patched=False)
    assert session.code == 0, session.log
    return folder


@pytest.mark.parametrize("run", list(RUNS))
def test_layers_per_bucket_and_collections_leave_training_as_it_is(
    run: str, reference: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch", minversion="2.13")  # its copies come together
    quick = {"warmup_steps": 1, "min_steps": 3, "max_steps": 3, "profile_steps": 0}
    blocks = [measure(str(index), overrides, **quick) for index, overrides in enumerate(EXACT)]
    if run == "unused":
        blocks.append(measure("search", {"find_unused_parameters": False}, **quick))
    session = launch(tmp_path, ["plain.py", *name_steps(run)], [*blocks, measure("rest", warmup_steps=1000)])
    assert session.code == 0, session.log
    if run == "unused":
        proof = session.result("search")["consumed"]["find_unused_parameters"]
        assert "no graph in 3 backward passes" in proof
        assert session.hello["facts"]["vain_search_s"] > 0
        assert session.hello["facts"]["ddp"]["built_at"].startswith("plain.py:")
    else:
        assert "vain_search_s" not in session.hello["facts"]
        assert "searches for no unused" in session.hello["refusals"]["find_unused_parameters"]
    for index, overrides in enumerate(EXACT):
        result = session.result(str(index))
        if run == "unused" and "bucket_cap_mb_list" in overrides:
            assert "find_unused_parameters=True" in result["not_consumed"]["bucket_cap_mb_list"]
        else:
            assert set(result["consumed"]) == set(overrides), result["not_consumed"]
    assert session.result("0")["consumed"]["fuse_grad_size_in_TFLOPS"].endswith("At most 2 layers in one.")
    sizes = [session.result(str(index))["bucket_bytes"] for index in range(len(EXACT))]
    assert len(sizes[2]) > len(sizes[0]) > len(sizes[4]) > len(sizes[3])
    assert sizes[3] == sizes[1]
    for name in [f"{run}.{what}.{rank}" for what in ("losses", "final") for rank in range(2)]:
        assert (tmp_path / name).read_text() == (reference / name).read_text(), session.log


def test_what_trials_compile_goes_with_the_session(session: Session) -> None:
    assert any((session.folder / "session" / "inductor").rglob("*"))
    # A CPU's compiler writes no kernels of Triton's: what the ranks would have it write shows where they would go.
    for rank in range(2):
        assert read_seen(session, rank)[-1]["triton"] == str(session.folder / "session" / "triton")
