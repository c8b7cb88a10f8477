"""Loads the runtime under its private name, as launch.py does inside a rank."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

LAUNCH = Path(__file__).resolve().parents[3] / "agent" / "runtime" / "launch.py"


def load_runtime() -> None:
    spec = importlib.util.spec_from_file_location("advisor_launch_for_tests", LAUNCH)
    assert spec is not None
    assert spec.loader is not None
    launch = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(launch)
    launch.load_runtime_package()


if "fleet_advisor_runtime" not in sys.modules:
    load_runtime()
pytest.importorskip("torch")

from fleet_advisor_runtime.observe.reduced import watch_building  # noqa: E402

watch_building()
