"""DeepSpeed's own engine under the runtime: what it reduces at once, and in which number format, switched live."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from advisor.protocol.answers.diagnosed import DEEPSPEED_PATTERN
from tests.distributed.runtime.fake_agent import END, Session, launch, measure, race

from .conftest import HERE

pytestmark = [pytest.mark.conformance, pytest.mark.distributed, pytest.mark.timeout(600)]
SIZE, WIRE, TYPE = "fuse_grad_size_in_MB", "fp16_allreduce", "fp16_allreduce_dtype"
OVERLAP = "sharding_overlap"
LAYER = (100 * 100 + 100) * 4 / 2**20
"""MB of the gradients of one of the script's six layers."""
VARIABLES = {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo"}
MICRO_STEPS_OF_A_BLOCK = 2 * (2 + 1)


def train(folder: Path, python: Path, stage: int, steps: int, instructions: list[dict] | None) -> Session:
    folder.mkdir()
    script = [str(HERE / "train_by_engine.py"), str(stage), str(steps)]
    session = launch(
        folder, script, instructions, patched=instructions is not None, python=str(python), variables=VARIABLES,
        timeout_s=200.0,
    )  # fmt: skip
    assert session.code == 0, session.log
    return session


def count(pieces: int) -> str:
    return "1 piece" if pieces == 1 else f"{pieces} pieces"


def read_losses(folder: Path) -> list[str]:
    return (folder / "losses.0").read_text().splitlines()


@pytest.mark.parametrize("stage", [1, 2])
def test_the_engines_pieces_follow_the_strategy_and_leave_the_same_bits(
    stage: int, deepspeed_python: Path, tmp_path: Path
) -> None:
    # On CPUs nothing travels beside the backward: the search leaves it out. The engine takes its way all the same.
    beside = {SIZE: LAYER, OVERLAP: True}
    arms = [{SIZE: LAYER}, {SIZE: 3 * LAYER}, {}, {SIZE: 1024.0}, beside, {OVERLAP: False}]
    blocks = [
        measure(str(place), arm, min_steps=1, max_steps=1, profile_steps=0) for place, arm in enumerate(arms)
    ]
    train(tmp_path / "plain", deepspeed_python, stage, 40, None)
    session = train(tmp_path / "tuned", deepspeed_python, stage, 40, [*blocks, END])

    assert session.hello["facts"]["sharding"] == "DeepSpeed"
    assert session.hello["facts"]["microbatches_per_step"] == 2
    assert session.hello["baseline"][SIZE] == pytest.approx(25_000 * 4 / 2**20)
    sentences = [session.result(str(place))["consumed"].get(SIZE) for place in range(6)]
    # Stage 2 reduces after each of the two micro-batches.
    passes = stage
    size = f"{LAYER:.3g}", f"{3 * LAYER:.3g}", "", f"{6 * LAYER:.3g}"
    assert sentences == [
        f"A step's gradients were reduced in {6 * passes} pieces of up to {size[0]} MB.",
        f"A step's gradients were reduced in {2 * passes} pieces of up to {size[1]} MB.",
        None,
        f"A step's gradients were reduced in {count(passes)} of up to {size[3]} MB.",
        f"A step's gradients were reduced in {6 * passes} pieces of up to {size[0]} MB.",
        None,
    ]
    both = [session.result(str(place))["consumed"].get(OVERLAP) for place in (4, 5)]
    assert both[0] == f"{6 * passes} of {6 * passes} pieces were collected in two buffers by turns."
    assert both[1].startswith("0 of ")
    tuned = read_losses(tmp_path / "tuned")
    assert len(tuned) > 6 * MICRO_STEPS_OF_A_BLOCK
    assert tuned == read_losses(tmp_path / "plain")[: len(tuned)]


def test_its_wire_format_is_switched_and_the_training_put_back(
    deepspeed_python: Path, tmp_path: Path
) -> None:
    half = race(
        {"own": {}, "fp16": {WIRE: True}, "bf16": {WIRE: True, TYPE: "bf16"}}, min_steps=4, max_steps=4
    )
    train(tmp_path / "plain", deepspeed_python, 2, 100, None)
    session = train(tmp_path / "tuned", deepspeed_python, 2, 100, [half, measure("after"), END])

    assert session.result("fp16")["consumed"][WIRE].endswith("pieces travelled as fp16.")
    assert session.result("bf16")["consumed"][WIRE].endswith("pieces travelled as bf16.")
    assert session.result("own")["not_consumed"] == {}
    plain, tuned = read_losses(tmp_path / "plain"), read_losses(tmp_path / "tuned")
    # Each turn of an arm begins with the weights and the optimizer that were saved: the same loss again, bit by bit.
    again, times = Counter(tuned).most_common(1)[0]
    assert again in plain
    assert times >= 2 * 3


def test_what_does_not_act_on_the_engine_is_refused_with_a_sentence(
    deepspeed_python: Path, tmp_path: Path
) -> None:
    session = train(tmp_path / "zero", deepspeed_python, 0, 20, [measure("base"), END])

    refusals = session.hello["refusals"]
    assert "this engine runs stage 0" in refusals[SIZE]
    assert refusals["localsgd"].endswith("not on DeepSpeed's engine.")
    assert session.result("base")["steps"] == 4


def test_sharded_parameters_are_refused(deepspeed_python: Path, tmp_path: Path) -> None:
    session = train(tmp_path / "three", deepspeed_python, 3, 60, [measure("base"), END])

    assert session.find("trouble")["code"] == "own_engine"
    assert "up to ZeRO's stage 2" in session.find("trouble")["sentence"]


def test_the_examples_speed_is_read_by_the_pattern_that_a_diagnosis_gives(deepspeed_python: Path) -> None:
    examples = HERE.parents[1] / "examples"
    words = ["deepspeed_zero3.py", "--config", "deepspeed_zero3.json", "--steps", "6"]
    done = subprocess.run(
        [str(deepspeed_python), "-m", "torch.distributed.run", "--nproc-per-node", "2", *words],
        cwd=examples, env=os.environ | VARIABLES, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    # Two steps go before the first that DeepSpeed times.
    speeds = [float(found) for found in re.findall(DEEPSPEED_PATTERN, done.stdout)]
    assert len(speeds) == 4
    assert min(speeds) > 0


def test_trainer_may_have_built_the_engine(deepspeed_python: Path, tmp_path: Path) -> None:
    session = launch(
        tmp_path, [str(HERE / "train_by_trainer_and_engine.py")], [measure("b", {SIZE: 4 * LAYER}), END],
        python=str(deepspeed_python), variables=VARIABLES, timeout_s=200.0,
    )  # fmt: skip
    assert session.code == 0, session.log
    assert session.hello["facts"]["sharding"] == "DeepSpeed"
    sentence = session.result("b")["consumed"][SIZE]
    assert sentence == f"A step's gradients were reduced in 2 pieces of up to {4 * LAYER:.3g} MB."
