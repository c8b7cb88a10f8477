"""A whole job of a preset, as a user runs it, of a stand-in with Megatron's options and its checks of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TRAINING = Path(__file__).with_name("train_like_megatron.py")


@pytest.mark.distributed
@pytest.mark.alone
@pytest.mark.timeout(300)
def test_a_preset_is_tuned_within_the_rules_of_its_program(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ADVISOR_")}
    environment |= {"ADVISOR_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    degrees = (
        "--freeze pipeline_model_parallel_size --freeze context_parallel_size --freeze sequence_parallel"
    )
    words = (
        f"--preset megatron {degrees} --freeze exchange --freeze recompute --try --micro-batch-size=1,16,32:exact "
        f"--minutes 1 --block-seconds 0.3 --output advice --json -- torchrun --standalone --nproc-per-node 2 "
        f"{TRAINING} --num-layers 2 --hidden-size 192 --num-attention-heads 3 --seq-length 8 --micro-batch-size 1 "
        "--global-batch-size 32 --train-iters 100000"
    )
    done = subprocess.run(
        [sys.executable, "-m", "advisor", "tune", *words.split()],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    advice = json.loads(done.stdout)
    # Three heads are no multiple of two, and two data-parallel ranks share a batch of 32: one strategy is left.
    assert advice["cost"]["trials"] == 1
    assert (advice["changes"] or advice["candidate"]) == {"micro_batch_size": 16}
