"""A short tuning job of a real Paddle dynamic-graph script: two ranks over gloo, in Paddle's own environment."""

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from advisor.protocol.measured.trials import Purpose
from advisor.services.jobs import get_history
from advisor.storage import Database

pytestmark = pytest.mark.conformance
ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("train_paddle.py")


@pytest.mark.timeout(400)
def test_paddles_own_buffers_are_measured_and_prove_themselves(
    paddle_python: Callable[[str], Path], clean_environment: Mapping[str, str], tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    environment = {
        name: value for name, value in clean_environment.items() if not name.startswith("ADVISOR_")
    }
    environment |= {"ADVISOR_DATA_DIR": str(data_dir), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    launch = [
        str(paddle_python("3.3.1")),
        "-m",
        "paddle.distributed.launch",
        "--nproc_per_node",
        "2",
        "--backend",
        "gloo",
    ]
    done = subprocess.run(
        [
            sys.executable, "-m", "advisor", "tune", "--kind", "paddle", "--minutes", "2.5", "--trials", "3",
            "--block-seconds", "0.5", "--output", str(tmp_path / "advice"), "--json", "--", *launch, str(SCRIPT),
        ],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=360, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    advice = json.loads(done.stdout)
    assert advice["software"]["paddle"] == "3.3.1"
    assert (advice["baseline"]["fuse_grad_size_in_MB"], advice["baseline"]["last_comm_group_size_MB"]) == (
        25,
        1,
    )
    assert {name for name, known in advice["provenance"].items() if known != "carried"} <= {
        "fuse_grad_size_in_MB", "last_comm_group_size_MB",
    }  # fmt: skip
    # On a busy machine nothing may be advised in these minutes; then a file for Paddle would change nothing.
    assert (tmp_path / "advice" / "strategy.prototxt").exists() is bool(advice["changes"])

    database = Database(f"sqlite:///{data_dir / 'advisor.db'}", new_id=lambda: uuid.uuid4().hex)
    with database.read() as work:
        history = get_history(work, advice["job_id"])
    database.close()
    baseline = next(t.number for t in history.trials if t.purpose is Purpose.BASELINE)
    measured = [block for block in history.done_blocks() if block.result is not None]
    # The model has 8.02 MB of gradients: Paddle puts the last layer's megabyte first, and the rest into one buffer.
    assert {len(b.result.bucket_bytes) for b in measured if b.trial_number == baseline and b.result} == {2}
    changed = [b.result for b in measured if b.trial_number != baseline and b.result]
    assert changed
    assert all("groups of gradients" in words for result in changed for words in result.consumed.values())
    assert any(len(result.bucket_bytes) != 2 for result in changed)
    assert all(len(result.per_rank_step_time_s) == 2 and result.samples_per_step == 16 for result in changed)
