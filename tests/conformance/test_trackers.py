"""Experiment trackers of today in a trial: it trains, and neither servers nor the home folder hear of it."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import HERE, provide_environment

pytestmark = [pytest.mark.conformance, pytest.mark.distributed, pytest.mark.timeout(600)]
SERVERS = (
    "CLEARML_API_HOST", "CLEARML_FILES_HOST", "CLEARML_WEB_HOST", "COMET_URL_OVERRIDE", "HF_ENDPOINT",
    "SWANLAB_API_HOST", "TRACKERS", "TRACKIO_SERVER_URL", "WANDB_BASE_URL",
)  # fmt: skip
"""Variables that name the servers which are told of trainings."""


def test_trackers_train_and_tell_nobody(tmp_path: Path, clean_environment: dict[str, str]) -> None:
    python = provide_environment("trackers", HERE / "requirements-trackers.txt", beside=sys.prefix)
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    script = work / "train.py"
    script.write_text((HERE / "train_with_trackers.py").read_text())
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        told = {**dict.fromkeys(SERVERS, url), "TRACKIO_WRITE_TOKEN": "t", "TRACKIO_SPACE_ID": "me/space"}
        done = subprocess.run(
            [sys.executable, "-m", "agent", "diagnose", "--json", "--",
             str(python), "-m", "torch.distributed.run", "--nproc-per-node", "2", script.name],
            env={**clean_environment, **told, "HOME": str(home), "PYTHONPATH": str(HERE.parents[1])},
            cwd=work, capture_output=True, text=True, timeout=500, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    told = json.loads(done.stdout)
    assert told["steps"] > 0
    assert os.listdir(home) == []
    assert os.listdir(work) == ["train.py"]
