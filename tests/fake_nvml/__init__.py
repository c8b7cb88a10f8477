"""A made-up NVML for the agent's child process, and how to put it in the real one's place."""

import json
import os
from pathlib import Path
from typing import Any


class FakeNvml:
    """The GPUs of one test, in a file that the fake module reads."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        """`settings` are the module's; see its docstring."""
        self._path = folder / "fake_nvml.json"
        self._settings: dict[str, Any] = {}
        self.change(**settings)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a child that sees these GPUs in place of the real ones."""
        folders = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "FAKE_NVML": str(self._path)}

    def change(self, **settings: Any) -> None:
        """Change some of the settings; the next sample sees them."""
        self._settings |= settings
        unfinished = self._path.with_suffix(".new")
        unfinished.write_text(json.dumps(self._settings))
        unfinished.replace(self._path)
