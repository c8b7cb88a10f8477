"""TRL's SFTTrainer, the example as it stands: it is measured, and what its own settings do is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.runtime.fake_agent import END, Session, launch, measure

pytestmark = [pytest.mark.conformance, pytest.mark.distributed, pytest.mark.timeout(600)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "trl_sft.py"


def train(folder: Path, python: Path, checkpoints: bool) -> Session:
    folder.mkdir()
    words = ["--output_dir", str(folder / "out"), "--use_cpu", "--save_strategy", "no", "--report_to", "none"]
    words += ["--max_steps", "60", "--gradient_checkpointing", str(checkpoints).lower()]
    session = launch(
        folder, [str(EXAMPLE), *words], [measure("own"), END], python=str(python), timeout_s=300.0
    )
    assert session.result("own")["steps"] == 4, session.log
    return session


def test_trl_is_measured_with_and_without_recomputation(trl_python: Path, tmp_path: Path) -> None:
    recomputing, keeping = (
        train(tmp_path / str(each), trl_python, checkpoints=each) for each in (True, False)
    )
    for session in (recomputing, keeping):
        assert session.hello["facts"]["batch_size_per_rank"] == 8  # TRL 1.16.0's default
        assert session.hello["facts"]["software"].keys() == {"transformers"}
    # TRL 1.16.0 computes activations again unless it is told otherwise.
    seen = recomputing.hello["facts"]["recomputed"]
    assert seen["per_step"] > 0, seen
    assert seen["seconds"] > 0, seen
    assert seen["by"] == "gradient_checkpointing", seen
    assert keeping.hello["facts"]["recomputed"] == {}
    assert [each.hello["baseline"]["activation_checkpointing"] for each in (recomputing, keeping)] == [
        True,
        False,
    ]
    # transformers 5.24.0: without recomputation its Trainer has DDP search each step's graph.
    searches = [each.hello["facts"]["ddp"]["find_unused_parameters"] for each in (recomputing, keeping)]
    assert searches == [False, True]
