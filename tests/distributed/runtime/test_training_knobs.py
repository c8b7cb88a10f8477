"""The knobs that change training do what their users would write by hand, bit for bit, and leave no trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .fake_agent import DEVICE, END, Session, launch, measure

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed

OPENED = 7
"""The step (from 0) at which the hello is said and the first block begins."""
SHORT: dict[str, Any] = {"warmup_steps": 2, "min_steps": 6, "max_steps": 6, "profile_steps": 0}
BLOCKS: dict[str, tuple[dict[str, Any], str, int]] = {
    "base": ({}, "none", 1),
    "merge": ({"gradient_merge": True, "gradient_merge_k_steps": 3}, "merge", 3),
    "bf16": ({"amp": True}, "bf16", 1),
    "fp16": ({"amp": True, "amp_dtype": "fp16"}, "fp16", 1),
    "static": (
        {"amp": True, "amp_dtype": "fp16", "amp_dynamic_loss_scaling": False, "amp_init_loss_scaling": 1024},
        "static",
        1024,
    ),
    "adaptive": ({"adaptive_localsgd": True, "adaptive_localsgd_init_k_steps": 2}, "adaptive", 2),
    "dgc": ({"dgc": True, "dgc_rank": 1}, "dgc", 1),
    "dgc_again": ({"dgc": True, "dgc_rank": 1}, "dgc", 1),
    "again": ({}, "none", 1),
}
WRONG = {
    "idle": {
        "gradient_merge_k_steps": 2,
        "adaptive_localsgd_init_k_steps": 2,
        "amp_dtype": "fp16",
        "dgc_rank": 2,
    },
    "invalid": {
        "gradient_merge": 2,
        "adaptive_localsgd": True,
        "adaptive_localsgd_init_k_steps": 17,
        "amp": True,
        "amp_dtype": "fp8",
        "dgc": True,
        "dgc_rank": 0,
    },
    "alone": {"gradient_merge": True, "gradient_merge_k_steps": 1},
    "together": {
        "gradient_merge": True,
        "gradient_merge_k_steps": 2,
        "amp": True,
        "amp_dtype": "fp16",
        "fuse_grad_size_in_MB": 0.01,
    },
}
STEPS = 160


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("tuned")
    blocks = [measure(name, overrides, **SHORT) for name, (overrides, _, _) in BLOCKS.items()]
    blocks += [measure(name, overrides, **SHORT) for name, overrides in WRONG.items()]
    session = launch(
        folder, ["by_hand.py", "--steps", str(STEPS)], [*blocks, measure("rest", warmup_steps=1000)]
    )
    assert session.code == 0, session.log
    return session


def length(session: Session, name: str) -> int:
    result = session.result(name)
    return int(result["warmup_steps"] + result["steps"] + result["excluded_steps"])


def read(folder: Path, what: str, rank: int) -> list[str]:
    return (folder / f"run.{what}.{rank}").read_text().splitlines()


def test_every_step_is_what_the_script_would_do_by_hand(tuned: Session, tmp_path: Path) -> None:
    schedule, first = [], OPENED
    for name, (_, what, value) in BLOCKS.items():
        schedule.append((first, length(tuned, name), what, value))
        first += length(tuned, name)
    script = ["by_hand.py", "--steps", str(first), "--schedule", json.dumps(schedule)]
    reference = launch(tmp_path, script, patched=False)
    assert reference.code == 0, reference.log
    for rank in range(2):
        for what in ("losses", "norms", "digests"):
            expected, found = read(tmp_path, what, rank)[:first], read(tuned.folder, what, rank)[:first]
            differing = [step for step in range(first) if expected[step] != found[step]]
            assert not differing, f"rank {rank}: {what} differ at {differing} of {schedule}"


def test_each_knob_is_proved(tuned: Session) -> None:
    for name, (overrides, _, _) in BLOCKS.items():
        assert set(tuned.result(name)["consumed"]) == set(overrides), tuned.result(name)["not_consumed"]
    merge = tuned.result("merge")
    assert merge["period"] == 3
    assert merge["consumed"]["gradient_merge"] == "2 updates and 4 reductions skipped; 4 steps were merged."
    assert merge["samples_per_step"] == 32
    if DEVICE == "cpu":  # on cards DDP is asked in steps of their own, of which these blocks have none
        assert merge["phases"]["exposed_comm_s"] > 0
    assert "layers gave bfloat16" in tuned.result("bf16")["consumed"]["amp"]
    assert "layers gave float16" in tuned.result("fp16")["consumed"]["amp_dtype"]
    assert "Intervals chosen: " in tuned.result("adaptive")["consumed"]["adaptive_localsgd"]
    assert DEVICE != "cpu" or tuned.result("adaptive")["phases"]["exposed_comm_s"] is not None
    assert "a translation of DGC" in tuned.result("dgc")["consumed"]["dgc"]
    assert "loss scale 4096" in tuned.result("fp16")["consumed"]["amp"]
    assert "static loss scale 1024" in tuned.result("static")["consumed"]["amp_init_loss_scaling"]


def test_a_value_that_does_nothing_says_so(tuned: Session) -> None:
    for name in ("idle", "invalid", "alone"):
        result = tuned.result(name)
        switches = {"adaptive_localsgd", "amp", "dgc"} if name == "invalid" else set()
        assert set(result["not_consumed"]) >= set(WRONG[name]) - switches, result
    assert "set 2 or more" in tuned.result("alone")["not_consumed"]["gradient_merge"]
    assert "never exceeds 16" in tuned.result("invalid")["not_consumed"]["adaptive_localsgd_init_k_steps"]
    together = tuned.result("together")
    assert set(together["consumed"]) == set(WRONG["together"]), together["not_consumed"]


FRAMEWORK_BLOCKS = {
    "merge": {"gradient_merge": True, "gradient_merge_k_steps": 3},
    "fp16": {"amp": True, "amp_dtype": "fp16"},
    "both": {"gradient_merge": True, "gradient_merge_k_steps": 2, "amp": True},
    "again": {},
}


@pytest.mark.parametrize("script", ["lightning_script.py", "hf_trainer.py"])
def test_frameworks_step_inside_a_closure_or_clear_through_the_model(script: str, tmp_path: Path) -> None:
    """Lightning runs forward and backward inside optimizer.step(); the Trainer clears by model.zero_grad()."""
    pytest.importorskip("lightning" if script.startswith("lightning") else "transformers")
    blocks = [measure(name, overrides, **SHORT) for name, overrides in FRAMEWORK_BLOCKS.items()]
    session = launch(tmp_path, [script], [*blocks, END])
    assert session.code == 0, session.log
    for name, overrides in FRAMEWORK_BLOCKS.items():
        result = session.result(name)
        assert set(result["consumed"]) == set(overrides), result["not_consumed"]
        assert not result["diverged"]
        assert result["samples_per_step"] == 32
    assert session.result("merge")["consumed"]["gradient_merge"].startswith(
        "2 updates and 4 reductions skipped"
    )


def test_a_script_with_a_scaler_of_its_own_keeps_its_mixed_precision(tmp_path: Path) -> None:
    local = {"localsgd": True, "localsgd_k_steps": 2}
    blocks = [measure("local", local, **SHORT), measure("amp", {"amp": True}, **SHORT), END]
    session = launch(tmp_path, ["by_hand.py", "--own-scaler"], blocks)
    assert session.code == 0, session.log
    refusals = session.hello["refusals"]
    assert "GradScaler of its own" in refusals["amp"]
    assert refusals["amp_dtype"] == refusals["amp"]
    assert "merged ones would be unscaled several times" in refusals["gradient_merge"]
    assert "feed that error back for ever" in refusals["dgc"]
    assert set(session.result("local")["consumed"]) == set(local)
    assert session.result("amp")["not_consumed"] == {"amp": refusals["amp"]}
