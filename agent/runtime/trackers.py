"""Keeps the script's own experiment trackers quiet during trials, unless the user configured them."""

from __future__ import annotations

import os
from typing import MutableMapping, Optional


def silence_trackers(variables: MutableMapping[str, str], session_dir: Optional[str]) -> None:
    """Sets each tracker's own switch where it is unset: trials must not appear in the user's dashboards."""
    variables.setdefault("WANDB_MODE", "disabled")
    variables.setdefault("COMET_MODE", "disabled")
    variables.setdefault("NEPTUNE_MODE", "debug")
    variables.setdefault("CLEARML_OFFLINE_MODE", "1")
    if session_dir:
        variables.setdefault(
            "MLFLOW_TRACKING_URI", "file:" + os.path.join(os.path.abspath(session_dir), "mlflow")
        )
