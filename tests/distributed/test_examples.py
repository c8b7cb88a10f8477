"""The example scripts train by the command that their docstring gives, with nothing downloaded."""

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.distributed
ELSEWHERE = {"trl_sft", "deepspeed_zero3", "numpy_training", "torchrec_training"}
"""TRL's and DeepSpeed's in make conformance, NumPy's in main_job; TorchRec brings megabytes that nothing else needs."""
SCRIPTS = (Path(__file__).parents[2] / "examples").glob("*.py")
EXAMPLES = sorted(script for script in SCRIPTS if script.stem not in ELSEWHERE)


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_example_trains_by_its_own_command(script: Path, tmp_path: Path) -> None:
    lines = (ast.get_docstring(ast.parse(script.read_text())) or "").splitlines()
    (command,) = (shlex.split(line) for line in lines if line.startswith("torchrun "))
    # As many steps as it takes to know that it trains.
    few = [word if word != "200" else "3" for word in command[1:]]
    assert few != command[1:]
    words = [sys.executable, "-m", "torch.distributed.run", *few]
    words[words.index(script.name)] = str(script)
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
