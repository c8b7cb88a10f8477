"""Keeps the script's own experiment trackers quiet during trials, unless the user's environment configures them, and
uploads nothing to a model hub."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from concurrent.futures import Future
from typing import Any, MutableMapping, Optional

from ..link.rank_output import say
from .after_import import call_after_import

SWITCHES = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",  # read by transformers, not by comet_ml
    "COMET_AUTO_LOG_DISABLE": "true",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "disabled",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""Each tracker's own."""
MLFLOW = "MLFLOW_TRACKING_URI"
TRACKIO_ELSEWHERE = ("space_id", "server_url", "dataset_id", "bucket_id", "webhook_url")
"""Arguments of trackio.init that send what it logs to others; each has a variable of the same name."""
SENDING = ("create_commit", "upload_file", "upload_folder", "upload_large_folder")
"""Of huggingface_hub's HfApi."""


def silence_trackers(variables: MutableMapping[str, str], session_dir: Optional[str]) -> None:
    """Trials must not appear in the user's dashboards, nor among their published models."""
    for name, value in SWITCHES.items():
        variables.setdefault(name, value)
    if session_dir and MLFLOW not in variables:
        uri = variables[MLFLOW] = "file:" + os.path.join(os.path.abspath(session_dir), "mlflow")
        variables["MLFLOW_ALLOW_FILE_STORE"] = "true"  # mlflow 3.17 refuses folders without it
        # Before mlflow's other modules take these names from it: a script that names its server is not heard either.
        call_after_import("mlflow.tracking._tracking_service.utils", lambda: _pin_mlflow(uri))
    if session_dir:
        # Trackio cannot be switched off: what it logs goes to a folder that is deleted with the session.
        variables["TRACKIO_DIR"] = os.path.join(os.path.abspath(session_dir), "trackio")
        for name in TRACKIO_ELSEWHERE:
            variables.pop(f"TRACKIO_{name.upper()}", None)
        call_after_import("trackio", _keep_trackio_here)
        call_after_import("clearml.config.cache", lambda: _keep_clearml_here(session_dir))
    call_after_import("huggingface_hub.hf_api", _stub_uploads)


def _keep_trackio_here() -> None:
    trackio: Any = sys.modules["trackio"]
    original = trackio.init

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(original).bind(*args, **kwargs)
        for name in TRACKIO_ELSEWHERE:
            given.arguments.pop(name, None)
        return original(*given.args, **given.kwargs)

    trackio.init = init


def _keep_clearml_here(folder: str) -> None:
    sys.modules["clearml.config.cache"].SessionCache.SESSION_CACHE_FOLDER = folder


def _pin_mlflow(uri: str) -> None:
    utils = sys.modules["mlflow.tracking._tracking_service.utils"]
    for name in ("_resolve_tracking_uri", "get_tracking_uri"):
        if hasattr(utils, name):
            setattr(utils, name, lambda *_args, **_kwargs: uri)


def _stub_uploads() -> None:
    """Repositories are not made and nothing is sent; the script is answered as if it had been."""
    hub: Any = sys.modules["huggingface_hub.hf_api"]

    def create_repo(self: Any, repo_id: str, *_args: Any, **_kwargs: Any) -> Any:
        return hub.RepoUrl(f"{self.endpoint}/{repo_id}", endpoint=self.endpoint)

    def send(self: Any, *args: Any, run_as_future: bool = False, **kwargs: Any) -> Any:
        repo_id = kwargs.get("repo_id") or args[0]
        say(f"a trial uploads nothing: {repo_id} stays as it is.")
        done: Any = Future()
        done.set_result(
            hub.CommitInfo(
                commit_url=f"{self.endpoint}/{repo_id}/commit/{'0' * 40}",
                commit_message=kwargs.get("commit_message") or "",
                commit_description="",
                oid="0" * 40,
            )
        )
        return done if run_as_future else done.result()

    stubs = {"create_repo": create_repo, **dict.fromkeys(SENDING, send)}
    for name, stub in stubs.items():
        if hasattr(hub.HfApi, name):
            setattr(hub.HfApi, name, stub)
            setattr(hub, name, getattr(hub.api, name))
