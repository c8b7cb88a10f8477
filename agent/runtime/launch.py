"""Starts a user's unchanged script with the runtime in front: `torchrun … launch.py [-m module | script.py] args…`.

This file is executed as a plain script. It loads its own folder as the package `fleet_advisor_runtime`, because the
user's repository may have a package named `agent` of its own. `injected/sitecustomize.py` and `api/fleet_advisor.py`
call `watch` instead.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from types import ModuleType

PRIVATE_NAME = "fleet_advisor_runtime"


def load_runtime_package() -> ModuleType:
    """Registers this folder in `sys.modules` under the private name and returns the package."""
    if PRIVATE_NAME in sys.modules:
        return sys.modules[PRIVATE_NAME]
    folder = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.spec_from_file_location(
        PRIVATE_NAME, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        raise RuntimeError(
            f"The runtime in {folder} cannot be loaded: the folder is incomplete. Reinstall the agent."
        )
    package = importlib.util.module_from_spec(spec)
    sys.modules[PRIVATE_NAME] = package
    spec.loader.exec_module(package)
    return package


def main() -> None:
    load_runtime_package()
    session = importlib.import_module(f"{PRIVATE_NAME}.inject.session")
    session.run(sys.argv[1:])


def watch() -> None:
    """Makes this process a rank as soon as it joins a process group, unless the runtime is in it already."""
    if PRIVATE_NAME in sys.modules:
        return
    load_runtime_package()
    importlib.import_module(f"{PRIVATE_NAME}.inject.joining").watch_for_rank()


if __name__ == "__main__":
    main()
