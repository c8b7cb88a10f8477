"""Calls back once torch has been imported by the script itself.

Importing torch before the script would fix thread pools and libraries that some scripts still configure through
os.environ in their first lines: then the baseline would not be the user's own.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Callable, Optional, Sequence


class _NotifyingLoader(Loader):
    def __init__(self, loader: Any, notify: Callable[[], None]) -> None:
        self._loader = loader
        self._notify = notify

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        module: Optional[ModuleType] = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            # Resources and pickles of torch find the real loader again.
            spec.loader = self._loader
            module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._notify()


class _TorchFinder(MetaPathFinder):
    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify

    def find_spec(
        self, fullname: str, _path: Optional[Sequence[str]], _target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = find_spec("torch")
        if spec is not None and spec.loader is not None:
            spec.loader = _NotifyingLoader(spec.loader, self._notify)
        return spec


def call_after_torch_import(notify: Callable[[], None]) -> None:
    """`notify` runs right after the first `import torch`, or now if torch is already there."""
    if "torch" in sys.modules:
        notify()
        return
    sys.meta_path.insert(0, _TorchFinder(notify))
