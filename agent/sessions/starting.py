"""Watches a launch until its first step: how long that may take, and what a launch that compiles is told."""

import math
from collections.abc import Callable, Sequence

from advisor.protocol.measured.messages import Assignment
from agent.files import DIRECT
from agent.guard.caches import Cache, find_locks
from agent.guard.processes import list_descendants, read_name
from agent.guard.stacks import RankStack

_SHARE = 0.75
"""Largest share of a session's life that its start may take: a longer one leaves nothing to measure in."""
_MOST_OF_LONGEST = 2.0
"""Times as long as the longest start of a job so far that another one may load."""
_LOOK_S = 2.0
_COMPILERS = frozenset(
    ("ninja", "cc1", "cc1plus", "nvcc", "cudafe++", "cicc", "ptxas", "clang", "clang++", "hipcc", "lld")
)
"""Names of processes that compile, as the kernel has them."""


def find_compilers(root: int) -> list[str]:
    """Return the names of those descendants of a process that compile, each once."""
    return sorted(_COMPILERS & {read_name(process) for process in list_descendants(root)})


class Start:
    """One launch's start. While something of it compiles it is no hang: its time runs from the last such sight."""

    def __init__(
        self,
        patience_s: float,
        limit_s: float,
        find: Callable[[int], list[str]] = find_compilers,
        *,
        longest_s: float = 0.0,
        hang_s: float = 120.0,
        note: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`patience_s` is the agent's for a start, `limit_s` the session's longest life.

        Where other launches of the job began after `longest_s`, this one has twice that, and then as long as a step
        may take (`hang_s`): a strategy that hangs before its first step is not to spend the budget. `note` is told the
        age at which this one begins.
        """
        self._limit_s, self._find, self._longest_s = limit_s, find, longest_s
        self._note, self._has_begun = note, False
        self._patience_s = min(patience_s, _SHARE * limit_s)
        if longest_s:
            self._patience_s = min(self._patience_s, _MOST_OF_LONGEST * longest_s + hang_s)
        self._looked_s = -math.inf
        self._built_s = 0.0
        self._seen: list[str] = []

    def look(self, age_s: float, root: int) -> list[str]:
        """Return what compiles among the launch's processes, which are the descendants of `root`, at this age."""
        if age_s - self._looked_s >= _LOOK_S:
            self._looked_s = age_s
            self._seen = self._find(root)
            if self._seen:
                self._built_s = age_s
        return self._seen

    def begin(self, age_s: float) -> None:
        """Take note of the first step, at this age; later calls do nothing."""
        if not self._has_begun:
            self._has_begun = True
            self._note(age_s)

    def give_up_because(self, age_s: float, root: int) -> str:
        """Return why a launch without a step is ended at this age, "" where it is not."""
        compilers = self.look(age_s, root)
        if age_s > self._limit_s and compilers:
            return (
                f"The launch still compiled ({', '.join(compilers)}) after {age_s:.0f} s, all the time that it had. "
                "Give the job more time; or start the command once by hand until it trains: trials find what is in "
                "your cache then."
            )
        if age_s - self._built_s <= self._patience_s and age_s <= self._limit_s:
            return ""
        since = "compiling ended" if self._built_s else "the launch"
        if self._longest_s:
            return (
                f"Not every rank of this node made a step within {age_s - self._built_s:.0f} s from {since}; other "
                f"launches of the job took {self._longest_s:.0f} s. If this one really takes longer, give the job a "
                "longer hang_timeout_s."
            )
        return (
            f"Not every rank of this node made a step within {age_s - self._built_s:.0f} s from {since}. If loading "
            "really takes that long, give the job more time, and the agent a longer --startup-timeout."
        )


class Starts:
    """The starts of one job's launches on this node: what the longest of them took until its first step."""

    def __init__(self) -> None:
        self._job_id, self._longest_s = "", 0.0

    def make(self, assignment: Assignment, patience_s: float) -> Start:
        """Return the start of the next launch; `patience_s` is the agent's."""
        if assignment.job_id != self._job_id:
            self._job_id, self._longest_s = assignment.job_id, 0.0
        return Start(
            patience_s,
            assignment.session_timeout_s,
            longest_s=self._longest_s,
            hang_s=assignment.hang_timeout_s,
            note=self._note,
        )

    def _note(self, age_s: float) -> None:
        self._longest_s = max(self._longest_s, age_s)


def explain_lock(found: Sequence[RankStack], caches: Sequence[Cache], compilers: Sequence[str]) -> str:
    """Return what ranks wait for that stand before a build's lock although nothing of the launch builds; else ""."""
    if compilers or not any(stack.stands_in("torch/utils/file_baton.py") for stack in found):
        return ""
    locks = find_locks(caches, DIRECT)
    files = ", ".join(locks) if locks else "the file `lock` in the extension's build folder"
    return (
        "It waits for an extension to be built, and no process of this launch builds it: another start on this machine "
        f"is building it, or a start that was ended left its lock. If none is, remove {files}."
    )
