"""The script's own files that its process runs: two launches of them are compared only where they are the same."""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

MOST_FILES = 200
MOST_BYTES = 1 << 20
_NOT_THE_SCRIPTS = ("site-packages", "dist-packages")
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def digest_own_sources(modules: Mapping[str, Any], launched: str) -> Dict[str, str]:
    """SHA-256 (16 hex digits) of the modules' files in the working directory and beside the main script, by the path
    from the working directory.

    One that is newer than `launched`, a path that was made for the launch, is left out: it is not what was loaded, or
    every run writes it anew.
    """
    try:
        here, latest_s = os.getcwd(), os.stat(launched).st_mtime
    except OSError:
        return {}
    return dict(_digest_all(list_own_sources(modules), here, latest_s))


def list_own_sources(modules: Mapping[str, Any]) -> List[str]:
    """The modules' files in the working directory and beside the main script, which comes first; 200 at most."""
    main = _find_file(modules.get("__main__"))
    try:
        here = os.getcwd()
    except OSError:
        return []
    folders = tuple({os.path.join(here, ""), os.path.join(os.path.dirname(main or here), "")})
    found = sorted({path for path in map(_find_file, list(modules.values())) if path is not None})
    own = [path for path in found if path.startswith(folders) and not _is_anothers(path)]
    if main is not None:
        own = [main, *(path for path in own if path != main)]
    return own[:MOST_FILES]


def _find_file(module: Any) -> Optional[str]:
    try:
        # Past the module's own ways of giving attributes: one that loads on demand is not to be loaded.
        path = object.__getattribute__(module, "__dict__").get("__file__")
    except (AttributeError, TypeError):
        return None
    return os.path.abspath(path) if isinstance(path, str) and path.endswith(".py") else None


def _is_anothers(path: str) -> bool:
    """Whether it is a library's: of an environment beside the script too."""
    return path.startswith((_OURS, sys.prefix + os.sep)) or any(part in path for part in _NOT_THE_SCRIPTS)


def _digest_all(paths: Iterable[str], here: str, latest_s: float) -> Iterable[Tuple[str, str]]:
    for path in paths:
        try:
            status = os.stat(path)
            if status.st_mtime > latest_s or status.st_size > MOST_BYTES:
                continue
            with open(path, "rb") as file:
                digest = hashlib.sha256(file.read()).hexdigest()[:16]
        except OSError:
            continue
        yield os.path.relpath(path, here), digest
