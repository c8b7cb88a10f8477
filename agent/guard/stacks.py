"""Captures the stacks of a session's ranks, and says in a sentence where each of them stands."""

import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from advisor.protocol.culprit import LIBRARY, is_library
from agent.runtime.link import stacks

_MOST_BYTES = 64 * 1024
"""Read of each rank's file, which the script could write to as well."""
_MOST_RANKS_NAMED = 8
_SETTLED_S = 0.2
_POLL_S = 0.02

_IMPORTING = "<frozen importlib."
"""In the name of each frame of the import machinery."""
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)


@dataclass(frozen=True)
class RankStack:
    """What one rank's interpreter wrote."""

    rank: int
    text: str

    def sentence(self) -> str:
        """Return where the rank's main thread stands: the script's own line, and what it called."""
        frames = self._main_thread_frames()
        if not frames:
            return f"Rank {self.rank} did not tell where it is."
        own = next((frame for frame in frames if not is_library(frame["file"])), frames[0])
        place = f"Rank {self.rank} is in {_shorten(own['file'])}:{own['line']} ({own['function']})"
        inner = frames[0]
        if inner is own:
            return f"{place}."
        called = frames[: frames.index(own)]
        if any(_IMPORTING in frame["file"] for frame in called):
            return f"{place}, still importing{_name_imported(called)}."
        return f"{place}, which waits in {_shorten(inner['file'])}:{inner['line']} ({inner['function']})."

    def stands_in(self, file: str) -> bool:
        """Whether the innermost call of the main thread is in a library's file of this name."""
        frames = self._main_thread_frames()
        return bool(frames) and frames[0]["file"].endswith(f"/{file}")

    def _main_thread_frames(self) -> list[re.Match[str]]:
        """Return the main thread's frames, innermost first: the interpreter lists its oldest thread last."""
        starts = [match.start() for match in _THREAD.finditer(self.text)]
        return list(_FRAME.finditer(self.text, starts[-1] if starts else 0))


def _name_imported(called: Sequence[re.Match[str]]) -> str:
    """The module of the outermost import: the first frame that its machinery called. Frames come innermost first."""
    outermost = max(place for place, frame in enumerate(called) if _IMPORTING in frame["file"])
    inside = reversed(called[:outermost])
    file = next((frame["file"] for frame in inside if _IMPORTING not in frame["file"]), "")
    parts = Path(_shorten(file)).with_suffix("").parts if file else ()
    return f" {'.'.join(part for part in parts if part != '__init__')}" if parts else ""


def capture_stacks(
    session_dir: Path, is_ours: Callable[[int], bool], timeout_s: float
) -> tuple[RankStack, ...]:
    """Ask every armed rank for its stacks and wait for them; a stopped rank is continued to answer.

    `is_ours` tells whether a process belongs to the session: the folder's file names are the ranks' own claims.
    """
    asked = []
    for rank, pid, path in stacks.list_armed(str(session_dir)):
        if is_ours(pid):
            with suppress(OSError):
                os.kill(pid, stacks.choose_signal())
                os.kill(pid, signal.SIGCONT)
                asked.append((rank, path))
    _await_settled([path for _, path in asked], timeout_s)
    return tuple(RankStack(rank, _read(path)) for rank, path in asked)


def describe_positions(found: Sequence[RankStack]) -> str:
    """Return where the ranks stand, one sentence for each; of many ranks only the first."""
    named = [stack.sentence() for stack in found[:_MOST_RANKS_NAMED]]
    left = len(found) - len(named)
    return " ".join([*named, f"{left} more ranks are in the log."] if left else named)


def write_out(found: Sequence[RankStack], most_characters: int) -> str:
    """Return all stacks for the log, the same share of `most_characters` for each rank; the main thread's end stays."""
    share = most_characters // max(1, len(found))
    parts = []
    for stack in found:
        text = stack.text if len(stack.text) <= share else "[…]\n" + stack.text[-share:]
        parts.append(f"Stacks of rank {stack.rank}, innermost call first:\n{text.rstrip()}\n")
    return "\n".join(parts)


def _await_settled(paths: Sequence[str], timeout_s: float) -> None:
    """Wait until every file has something and none has grown for a moment."""
    deadline = time.monotonic() + timeout_s
    before: list[int] = []
    changed_at_s = time.monotonic()
    while (now := time.monotonic()) < deadline:
        sizes = [_size(path) for path in paths]
        if sizes != before:
            before, changed_at_s = sizes, now
        elif all(sizes) and now - changed_at_s > _SETTLED_S:
            return
        time.sleep(_POLL_S)


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _read(path: str) -> str:
    """Read the end of a file in the ranks' folder, whatever they made of it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        os.lseek(file, max(0, os.fstat(file).st_size - _MOST_BYTES), os.SEEK_SET)
        return os.read(file, _MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(file)


def _shorten(file: str) -> str:
    """Keep the file's name, and for a library's file where in it that is."""
    found = LIBRARY.match(file)
    return file[found.end() :] if found else Path(file).name
