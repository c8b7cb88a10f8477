"""Starts a user's unchanged script with the runtime in front: `torchrun … launch.py [-m module | script.py] args…`.

This file is executed as a plain script. It loads its own folder, which may lie in an archive, as the package
`fleet_advisor_runtime`, because the user's repository may have a package named `agent` of its own.
`injected/sitecustomize.py` and `api/fleet_advisor.py` call `watch` instead.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType

PRIVATE_NAME = "fleet_advisor_runtime"


def load_runtime_package() -> ModuleType:
    """Registers this folder in `sys.modules` under the private name and returns the package."""
    if PRIVATE_NAME not in sys.modules:
        spec = ModuleSpec(PRIVATE_NAME, None, is_package=True)
        spec.submodule_search_locations = [os.path.dirname(os.path.abspath(__file__))]
        sys.modules[PRIVATE_NAME] = module_from_spec(spec)
    return sys.modules[PRIVATE_NAME]


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
