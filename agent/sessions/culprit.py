"""Finds in a session's log what ended it: the exception that is no consequence of another rank's end, and its place."""

import re
from dataclasses import dataclass
from pathlib import Path

from agent.guard.stacks import is_library

_MARK = re.compile(r"^(?:\[rank (?P<rank>\d+)\] )?(?:\[(?:rank(?P<torchs>\d+)|\w+)\]: ?)?")
"""The agent's, and torch's own."""
_EXCEPTION = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt|Lost)\b(?:: .*)?)$")
_TERMINATED = re.compile(r"^terminate called after throwing an instance of '(.*)'")
_WHAT = re.compile(r"^\s*what\(\):\s*(.*)$")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)(?:, in (.+))?$')
_LAUNCHERS = re.compile(
    r"torch\.distributed\.elastic|ChildFailedError|ProcessRaisedException|ProcessExitedException"
)
"""What a launcher says about a rank's end is no news."""
_CONSEQUENCE = re.compile(
    r"Connection (?:closed by peer|reset by peer|refused|closed by remote)|Broken pipe|remote process exited"
    r"|Socket Timeout|store.*(?:has )?(?:been )?(?:closed|shut ?down)|PeerLost|[Ww]atchdog|SignalException"
    r"|KeyboardInterrupt|NCCL communicator was aborted|Timed out waiting \d+ms for (?:recv|send)"
    r"|collective.*timed out",
    re.IGNORECASE,
)


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

    @property
    def is_consequence(self) -> bool:
        """Whether it only says that another rank ended first."""
        return bool(_CONSEQUENCE.search(self.what))

    def describe(self) -> str:
        """`ValueError: too few (train.py:12 (load), rank 1)`."""
        where = ", ".join(filter(None, [self.place, "" if self.rank is None else f"rank {self.rank}"]))
        return f"{self.what} ({where})" if where else self.what


def find_culprit(text: str) -> Culprit | None:
    """Return the exception that ended the session; of several ranks' the first one that is no consequence.

    `text` is the log, with or without the marks that say which rank wrote a line.
    """
    ranks: dict[int | None, list[tuple[int, str]]] = {}
    for number, line in enumerate(text.splitlines()):
        mark = _MARK.match(line)
        told = (mark["rank"] or mark["torchs"]) if mark else None
        rank = None if told is None else int(told)
        ranks.setdefault(rank, []).append((number, line[mark.end() if mark else 0 :]))
    found = [culprits for rank, lines in ranks.items() if (culprits := _list_exceptions(rank, lines))]
    last = [culprits[-1] for culprits in found]
    if own := [culprit for culprit in last if not culprit.is_consequence]:
        return min(own, key=lambda culprit: culprit.line)
    # What a rank met before and survived counts only where no rank ended with an exception of its own.
    before = [culprit for culprits in found for culprit in culprits if not culprit.is_consequence]
    return max(before or last, key=lambda culprit: culprit.line, default=None)


def _list_exceptions(rank: int | None, lines: list[tuple[int, str]]) -> list[Culprit]:
    found: list[Culprit] = []
    place, terminated = "", ""
    for number, line in lines:
        if _TRACEBACK.search(line):
            place = ""
        elif frame := _FRAME.match(line):
            if not is_library(frame[1]):
                place = f"{Path(frame[1]).name}:{frame[2]}"
                place += f" ({frame[3]})" if frame[3] and frame[3] != "<module>" else ""
        elif ended := _TERMINATED.match(line):
            terminated = ended[1]
        elif what := _WHAT.match(line):
            found.append(Culprit(f"{terminated or 'C++ exception'}: {what[1]}"[:300], "", rank, number))
        elif (exception := _EXCEPTION.match(line)) and not _LAUNCHERS.search(line):
            found.append(Culprit(exception[1].strip()[:300], place, rank, number))
            place = ""
    return found
