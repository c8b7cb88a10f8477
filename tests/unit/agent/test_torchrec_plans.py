"""Plans of TorchRec's tables: written by the module that users call, read back as they were; or what is missing."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKLOADS = Path(__file__).parents[3] / "agent" / "workloads"
EXAMPLE = Path(__file__).parents[3] / "examples" / "torchrec_training.py"
HAS_TORCHREC = importlib.util.find_spec("torchrec") is not None


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(WORKLOADS / "torchrec_plans.py"), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.skipif(HAS_TORCHREC, reason="TorchRec is installed here")
def test_a_missing_torchrec_is_told_with_the_two_packages_that_work(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    told = run(tmp_path, "train.py:build_model", "--ranks", "2")
    assert told.returncode == 1
    assert "fbgemm-gpu-cpu==1.8.0 torchrec==1.8.0" in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.skipif(not HAS_TORCHREC, reason="needs torchrec==1.8.0 and fbgemm-gpu-cpu==1.8.0")
def test_plans_of_a_model_are_written_once_each_with_the_planners_choice_first(tmp_path: Path) -> None:
    told = run(tmp_path, f"{EXAMPLE}:build_model", "--ranks", "2", "--most", "20")
    assert told.returncode == 0, told.stderr
    first, *others = [line for line in told.stdout.splitlines() if "plans/" in line and "advisor" not in line]
    assert first.endswith("plans/default.json")
    assert any(line.endswith("plans/all-row-wise.json") for line in others)
    plans = [json.loads(path.read_text())["plan"] for path in sorted((tmp_path / "plans").iterdir())]
    assert all(plans.count(plan) == 1 for plan in plans)
    sys.path.insert(0, str(WORKLOADS))
    from torchrec_plans import describe_plan, read_plan

    for path in (tmp_path / "plans").iterdir():
        assert describe_plan(read_plan(str(path))) == json.loads(path.read_text())["plan"]
