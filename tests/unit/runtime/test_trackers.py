"""What a script tells trackers and model hubs during a trial goes nowhere. Each case is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUNTIME = Path(__file__).parents[3] / "agent" / "runtime"

HUB = """
import huggingface_hub, pathlib
from huggingface_hub import HfApi, create_repo, upload_folder
pathlib.Path("out").mkdir(); pathlib.Path("out/model.bin").write_text("weights")
print(create_repo("me/model").repo_id)
print(upload_folder(repo_id="me/model", folder_path="out", commit_message="step 1").commit_url)
print(HfApi().upload_file(path_or_fileobj="out/model.bin", path_in_repo="a", repo_id="me/model").repo_url.repo_id)
"""
MLFLOW = """
from mlflow import set_tracking_uri, client
set_tracking_uri("http://tracking.example.com")
print(client.MlflowClient("http://tracking.example.com").uri)
"""


def run(code: str, folder: Path, **variables: str) -> str:
    """A child in front of which the runtime stands, as in a job that is let in through its environment."""
    path = os.pathsep.join([str(RUNTIME / "injected"), str(folder)])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "ADVISOR_TUNING": "1", **variables}
    environment["ADVISOR_SESSION_DIR"] = str(folder / "session")
    # Nothing listens there: whoever asks the hub fails at once.
    environment |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HOME": str(folder)}
    child = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
    return child.stdout


def test_nothing_is_uploaded_to_the_hub(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    lines = run(HUB, tmp_path).splitlines()
    assert lines == ["me/model", f"http://127.0.0.1:9/me/model/commit/{'0' * 40}", "me/model"]


QUIET = {
    "WANDB_MODE": "disabled", "COMET_MODE": "disabled", "COMET_AUTO_LOG_DISABLE": "true", "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1", "SWANLAB_MODE": "disabled", "MLFLOW_DISABLE_TELEMETRY": "true",
}  # fmt: skip
"""What each tracker's documents say of a run that is kept nowhere, or on this machine only."""


def test_every_tracker_is_quiet_unless_the_jobs_environment_wants_it(tmp_path: Path) -> None:
    code = f"import os\nfor name in {list(QUIET)}: print(os.environ.get(name))"
    assert run(code, tmp_path).split() == list(QUIET.values())
    wanted = [f"of the user's for {name}".replace(" ", "-") for name in QUIET]
    assert run(code, tmp_path, **dict(zip(QUIET, wanted, strict=True))).split() == wanted


def write_mlflow(folder: Path) -> None:
    """mlflow's own names, as far as a tracking server is chosen by them."""
    service = folder / "mlflow" / "tracking" / "_tracking_service"
    service.mkdir(parents=True)
    for package in (service.parents[1], service.parent, service):
        (package / "__init__.py").write_text("")
    (service.parents[1] / "__init__.py").write_text(
        "from mlflow.tracking._tracking_service.utils import set_tracking_uri"
    )
    (service / "utils.py").write_text(
        "_uri = None\n"
        "def set_tracking_uri(uri):\n    global _uri\n    _uri = uri\n"
        "def get_tracking_uri():\n    return _uri\n"
        "def _resolve_tracking_uri(tracking_uri=None):\n    return tracking_uri or get_tracking_uri()\n"
    )
    (service.parents[1] / "client.py").write_text(
        "from mlflow.tracking._tracking_service import utils\n"
        "class MlflowClient:\n"
        "    def __init__(self, uri):\n        self.uri = utils._resolve_tracking_uri(uri)\n"
    )


def test_a_tracking_server_that_the_script_names_hears_nothing_of_trials(tmp_path: Path) -> None:
    write_mlflow(tmp_path)
    assert run(MLFLOW, tmp_path).strip() == f"file:{tmp_path}/session/mlflow"


def test_a_server_that_the_jobs_environment_names_is_wanted(tmp_path: Path) -> None:
    write_mlflow(tmp_path)
    chosen = run(MLFLOW, tmp_path, MLFLOW_TRACKING_URI="http://tracking.example.com")
    assert chosen.strip() == "http://tracking.example.com"


def test_trackio_writes_to_the_sessions_folder_and_sends_nothing(tmp_path: Path) -> None:
    (tmp_path / "trackio.py").write_text(
        "import os\n"
        "def init(project, name=None, group=None, space_id=None, server_url=None, dataset_id=None, bucket_id=None,\n"
        "         config=None, webhook_url=None):\n"
        "    print(project, name, space_id, server_url, bucket_id, config, webhook_url, os.environ['TRACKIO_DIR'],\n"
        "          sorted(name for name in os.environ if name.startswith('TRACKIO_')))\n"
    )
    code = (
        "from trackio import init\n"
        "init('mine', 'tonight', None, 'me/space', bucket_id='me/bucket', config=3, webhook_url='https://x')"
    )
    variables = {f"TRACKIO_{name}": "me/other" for name in ("SPACE_ID", "BUCKET_ID", "SERVER_URL", "DIR")}
    own = f"{tmp_path}/session/trackio"
    assert run(code, tmp_path, **variables).strip() == (
        f"mine tonight None None None 3 None {own} ['TRACKIO_DIR']"
    )
