"""Calls back once the script itself has imported a module: torch, and what uploads.

Importing torch before the script would fix thread pools and libraries that some scripts still configure through
os.environ in their first lines: then the baseline would not be the user's own.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Dict, Optional, Sequence

from ..link.rank_output import say


class _NotifyingLoader(Loader):
    def __init__(self, loader: Any, notify: Callable[[], None]) -> None:
        self._loader = loader
        self._notify = notify

    def __getattr__(self, name: str) -> Any:
        # Code that only looks torch up (find_spec, to see whether it is installed) finds all of its loader.
        return getattr(self._loader, name)

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


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self.waiting: Dict[str, Callable[[], None]] = {}

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if fullname not in self.waiting:
            return None
        for finder in [finder for finder in sys.meta_path if finder is not self]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _NotifyingLoader(spec.loader, lambda: self._finish(fullname))
                return spec
        return None

    def _finish(self, name: str) -> None:
        notify = self.waiting.pop(name, None)
        if not self.waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
        if notify is not None:
            _call(notify)


def _call(notify: Callable[[], None]) -> None:
    """The script imports its module, whatever fails in ours."""
    try:
        notify()
    except Exception as error:
        say(f"a part of this process is not measured: {error!r}")


def call_after_import(name: str, notify: Callable[[], None]) -> None:
    """`notify` runs right after the first import of module `name`, or now if it is already there."""
    if name in sys.modules:
        _call(notify)
        return
    finder = next((finder for finder in sys.meta_path if isinstance(finder, _Finder)), None)
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    finder.waiting[name] = notify
