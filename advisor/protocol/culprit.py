"""Finds in a session's log what ended it: the exception that is no consequence of another rank's end, and its lines."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

LIBRARY = re.compile(
    r".*/(?:site-packages|dist-packages|lib/python3[.\d]*)/|<frozen |.*/bin/(?:torchrun|accelerate|deepspeed)$"
    r"|.*/agent/runtime/(?=(?:__main__|backends|current|facts|guard|hooks|launch|model_search|plain_models|private_torch"
    r"|rank_process|runtime|script_loaders|untraced)\.py|(?:api|calibrating|inject|injected|levers|link|loading|nccl_tuner|observe|races"
    r"|steering)/)"
)
"""Files of the interpreter's, of installed packages and of the runtime that trains for the advisor."""
_OURS = re.compile(
    r".*/agent/runtime/(?=(?:facts|rank_process|runtime)\.py|(?:calibrating|link|nccl_tuner|observe|races|steering)/)"
)
"""Files of the runtime that make no call for the script: what is raised in them is the runtime's."""
_MARK = re.compile(r"^(?:\[rank (?P<rank>\d+)\] )?(?:\[(?:rank(?P<torchs>\d+)|\w+)\]: ?)?")
"""The agent's, and torch's own."""
_EXCEPTION = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt|Lost)\b(?:: .*)?)$")
_ANY_NAME = re.compile(r"^((?:\w+\.)*[A-Za-z_]\w*(?:: .*)?)$")
"""What stands where a traceback's frames end is an exception, whatever its class is called."""
_TERMINATED = re.compile(r"^terminate called after throwing an instance of '(.*)'")
_WHAT = re.compile(r"^\s*what\(\):\s*(.*)$")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_ANY_FRAME = re.compile(r'^(\s*)File "([^"]+)", line \d+')
"""Of a traceback, or of the interpreter's list of stacks."""
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)(?:, in (.+))?$')
_LAUNCHERS = re.compile(
    r"torch\.distributed\.elastic|ChildFailedError|ProcessRaisedException|ProcessExitedException"
)
"""What a launcher says about a rank's end is no news."""
_CHAINED = re.compile(r"During handling of the above exception|The above exception was the direct cause")
_STOPPED = "fleet advisor: local rank "
"""What the agent's own launcher says when it stops the other ranks."""
_ENDED_FIRST = re.compile(
    r"local rank (\d+) ended with exitcode : (-?\d+)"
    r"|Root Cause[\s\S]*?\srank +: (\d+) \(local_rank: \d+\)\s+exitcode +: (-?\d+)"
)
"""As the agent's own launcher says it, and torchrun."""
_MOST_LINES = 20
_CONSEQUENCE = re.compile(
    r"Connection (?:closed by peer|reset by peer|refused|closed by remote)|Broken pipe|remote process exited"
    r"|Socket Timeout|store.*(?:has )?(?:been )?(?:closed|shut ?down)|PeerLost|[Ww]atchdog|SignalException"
    r"|KeyboardInterrupt|NCCL communicator was aborted|Timed out waiting \d+ms for (?:recv|send)"
    r"|collective.*timed out",
    re.IGNORECASE,
)
_FOREIGN = re.compile(r"^(?!torch\.|c10|agent\.)\w+\.")
"""An exception of a package that exchanges nothing between ranks: what it says of connections is about others."""


@dataclass(frozen=True)
class Culprit:
    """An exception in the log."""

    what: str
    """`ValueError: too few`."""
    place: str
    """`train.py:12 (load)`, the script's own innermost line; empty where no traceback names one."""
    rank: int | None
    line: int
    """Where in the log it stands."""
    is_ours: bool = False
    """Whether the runtime raised it, and not the script."""
    traceback: tuple[str, ...] = ()
    """Its lines in the log up to the exception, with those it came from, without the marks of ranks."""

    @property
    def is_consequence(self) -> bool:
        """Whether it only says that another rank ended first."""
        return bool(_CONSEQUENCE.search(self.what)) and not _FOREIGN.match(self.what)

    def describe(self) -> str:
        """`ValueError: too few (train.py:12 (load), rank 1)`."""
        where = ", ".join(filter(None, [self.place, "" if self.rank is None else f"rank {self.rank}"]))
        return f"{self.what} ({where})" if where else self.what


def find_culprit(text: str) -> Culprit | None:
    """Return the exception that ended the session; of several ranks' the first one that is no consequence.

    `text` is the log, with or without the marks that say which rank wrote a line.
    """
    ranks = _split_ranks(text)
    found = [culprits for rank, lines in ranks.items() if (culprits := _list_exceptions(rank, lines))]
    last = [culprits[-1] for culprits in found]
    if own := [culprit for culprit in last if not culprit.is_consequence]:
        first = find_first_end(text)
        # Another rank's may be one that it survived.
        return min(own, key=lambda culprit: (first is None or culprit.rank != first[0], culprit.line))
    # What a rank met before and survived counts only where no rank ended with an exception of its own.
    before = [culprit for culprits in found for culprit in culprits if not culprit.is_consequence]
    return max(before or last, key=lambda culprit: culprit.line, default=None)


def find_first_end(text: str) -> tuple[int, int] | None:
    """Return the rank that ended first, with its exit code, as the launcher says it; a node's own launcher counts its
    ranks from 0."""
    found = _ENDED_FIRST.search(text)
    return found and (int(found[1] or found[3]), int(found[2] or found[4]))


def excerpt_failure(text: str) -> str:
    """Return the lines of a failed session's log that say why: the culprit's traceback in the script's own files.

    Without one the last lines of the ranks, each once; a launcher's only where no rank wrote any.
    """
    culprit = find_culprit(text)
    if culprit is not None and not culprit.is_consequence:
        return "\n".join(_keep_script(culprit.traceback)[-_MOST_LINES:])
    ranks = _split_ranks(text)
    numbered = sorted(
        line for rank, lines in ranks.items() if rank is not None or len(ranks) == 1 for line in lines
    )
    said = [line for _, line in numbered if line.strip() and not line.startswith(_STOPPED)]
    return "\n".join(list(dict.fromkeys(_keep_script(said)))[-_MOST_LINES:])


def is_library(file: str) -> bool:
    """Whether a file is the interpreter's, an installed package's or the runtime's, and not the script's own."""
    return bool(LIBRARY.match(file))


def _split_ranks(text: str) -> dict[int | None, list[tuple[int, str]]]:
    """Return each rank's lines with their place in the log; None stands for what no rank is named for."""
    ranks: dict[int | None, list[tuple[int, str]]] = {}
    for number, line in enumerate(text.splitlines()):
        mark = _MARK.match(line)
        told = (mark["rank"] or mark["torchs"]) if mark else None
        rank = None if told is None else int(told)
        ranks.setdefault(rank, []).append((number, line[mark.end() if mark else 0 :]))
    return ranks


def _keep_script(lines: Sequence[str]) -> list[str]:
    """Leave out the frames of libraries, each with its line of code and the marks below it."""
    kept, inside = [], ""
    for line in lines:
        if (frame := _ANY_FRAME.match(line)) is not None:
            inside = f"{frame[1]} " if is_library(frame[2]) else ""
        elif inside and not line.startswith(inside):
            inside = ""
        if not inside:
            kept.append(line)
    return kept


def _list_exceptions(rank: int | None, lines: list[tuple[int, str]]) -> list[Culprit]:
    found: list[Culprit] = []
    place, innermost, terminated, in_message = "", "", "", False
    block: list[str] = []
    for number, line in lines:
        frame = _FRAME.match(line)
        innermost = frame[1] if frame else innermost
        if _TRACEBACK.search(line):
            place = innermost = ""
            block = block if block and _CHAINED.search(block[-1]) else []
        elif frame and not is_library(frame[1]):
            place = f"{Path(frame[1]).name}:{frame[2]}"
            place += f" ({frame[3]})" if frame[3] and frame[3] != "<module>" else ""
        elif ended := _TERMINATED.match(line):
            terminated = ended[1]
        elif what := _WHAT.match(line):
            found.append(
                Culprit(
                    f"{terminated or 'C++ exception'}: {what[1]}"[:300], "", rank, number, traceback=(line,)
                )
            )
        elif (exception := _match_exception(line, block)) and not _LAUNCHERS.search(line):
            is_ours = bool(_OURS.match(innermost))
            found.append(Culprit(exception[1].strip()[:300], place, rank, number, is_ours, (*block, line)))
            place, innermost, block, in_message = "", "", [], True
            continue
        elif _CHAINED.search(line) and found:
            block = [*found[-1].traceback, line]
        if in_message and line[:1].isspace() and line.strip():
            found[-1] = replace(found[-1], traceback=(*found[-1].traceback, line))
            continue
        in_message = False
        if (block or frame or _TRACEBACK.search(line)) and line.strip() and not _CHAINED.search(line):
            block.append(line)
    return found


def _match_exception(line: str, block: Sequence[str]) -> re.Match[str] | None:
    """Match an exception's line; `block` is the traceback above it."""
    ends_frames = len(block) > 1 and block[-1][:1].isspace()
    return _EXCEPTION.match(line) or (_ANY_NAME.match(line) if ends_frames else None)
