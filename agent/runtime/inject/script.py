"""Runs the user's script as __main__ with the sys.argv and sys.path it would have if run directly."""

from __future__ import annotations

import os
import runpy
import sys
from dataclasses import dataclass
from typing import List, Optional, Sequence


@dataclass(frozen=True)
class Script:
    """What to run: either a file or a module, and its arguments."""

    path: Optional[str]
    module: Optional[str]
    arguments: Sequence[str]


def parse_script(arguments: List[str]) -> Script:
    """`[-m module | script.py] args…`, as python itself reads it."""
    if arguments and arguments[0] == "-m":
        if len(arguments) < 2:
            raise SystemExit("fleet advisor: -m needs the name of a module.")
        return Script(None, arguments[1], arguments[2:])
    if not arguments:
        raise SystemExit("fleet advisor: no script given; usage: launch.py [-m module | script.py] args…")
    return Script(arguments[0], None, arguments[1:])


def run_script(script: Script) -> None:
    """Returns when the script has ended; its exceptions and SystemExit pass through."""
    if script.module is not None:
        sys.path[0] = os.getcwd()
        sys.argv = [script.module, *script.arguments]
        runpy.run_module(script.module, run_name="__main__", alter_sys=True)
        return
    path = script.path or ""
    if os.path.isdir(path) or path.endswith((".zip", ".pyz")):
        del sys.path[0]  # runpy puts the archive or folder there itself
    else:
        # Python uses the folder of the resolved link, but keeps the path as given in argv.
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    sys.argv = [path, *script.arguments]
    runpy.run_path(path, run_name="__main__")
