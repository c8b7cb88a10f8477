"""Watches the ranks' beats: how far they are, and which of them hangs."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.guard.processes import read_state
from agent.runtime.link import beat

_WAITING, _COMPILING = beat.PHASE_NAMES[beat.WAITING], beat.PHASE_NAMES[beat.COMPILING]
_COMPILING_FACTOR = 10
"""How many times the usual a rank may be silent while it compiles the model: torch.compile takes minutes."""
REMEDY = (
    "Ranks that make different numbers of steps wait for each other so: give them equally many batches "
    "(drop_last=True, a DistributedSampler) or train inside model.join(). If a step, an evaluation or a checkpoint "
    "may take that long, raise the job's hang_timeout_s."
)
"""What to do about a hang; behind the ranks' places, which tell more."""
_STATES = {"T": "is stopped", "t": "is being traced", "D": "is stuck in the kernel", "": "is gone"}


@dataclass(frozen=True)
class Hang:
    """A rank without progress."""

    rank: int
    sentence: str


@dataclass(frozen=True)
class _Seen:
    """A rank's last progress, as this agent saw it."""

    beat: beat.Beat
    at_s: float


def _say_where(found: beat.Beat) -> tuple[int, str, int]:
    """What differs once a rank has got on: while strategies are switched and links measured no step is made."""
    return found.step, found.phase, found.exchanges


class Progress:
    """The local ranks of one session."""

    def __init__(self, session_dir: Path, hang_timeout_s: float, clock: Callable[[], float]) -> None:
        """`session_dir` is the ranks' folder."""
        self._session_dir = session_dir
        self._hang_timeout_s = hang_timeout_s
        self._clock = clock
        self._seen: dict[int, _Seen] = {}

    def update(self) -> None:
        """Read every rank's beat."""
        for path in self._session_dir.glob("beat.*"):
            found = beat.read(str(path))
            if found is None:
                continue
            before = self._seen.get(found.rank)
            moved = before is None or _say_where(before.beat) != _say_where(found)
            at_s = self._clock() if moved or before is None else before.at_s
            self._seen[found.rank] = _Seen(found, at_s)

    @property
    def ranks(self) -> int:
        """Number of local ranks that gave a sign of life."""
        return len(self._seen)

    def count_steps(self) -> int | None:
        """Return the steps of the slowest local rank, None before the first beat."""
        return min((seen.beat.step for seen in self._seen.values()), default=None)

    def has_begun(self) -> bool:
        """Whether every local rank that is known has made a step."""
        return (self.count_steps() or 0) > 0

    def is_stalling(self) -> bool:
        """Whether a local rank made no step for half of what counts as a hang; others may be the cause."""
        now = self._clock()
        return any(
            seen.beat.phase != _WAITING and now - seen.at_s > self._limit_s(seen) / 2
            for seen in self._seen.values()
        )

    def find_hang(self, instruction_pending: bool) -> Hang | None:
        """Return the rank that made no step for too long.

        A rank that waits for an instruction or for another rank does not hang itself; only when all local ones
        wait although no instruction is due (`instruction_pending` is false) something is wrong with all of them.
        """
        now = self._clock()
        suspects = [seen for seen in self._seen.values() if seen.beat.phase != _WAITING]
        if not suspects and not instruction_pending and 0 in self._seen:
            suspects = list(self._seen.values())
        overdue = [seen for seen in suspects if now - seen.at_s > self._limit_s(seen)]
        if not overdue or not self.has_begun():
            return None
        states = {seen.beat.rank: _STATES.get(read_state(seen.beat.process_id), "") for seen in overdue}
        # The others wait for the rank that cannot run, or else for the one that is furthest behind.
        culprit = min(
            overdue, key=lambda seen: (not states[seen.beat.rank], seen.beat.step, seen.beat.monotonic_s)
        )
        found, silent_s = culprit.beat, now - culprit.at_s
        state, phase = states[found.rank], found.phase.replace("_", " ")
        level = [seen for seen in overdue if seen.beat.step == found.step]
        if len(level) == len(self._seen) > 1 and not state:
            what = f"No rank of this node made a step for {silent_s:.0f} s (all in step {found.step})"
        else:
            what = (
                f"Rank {found.rank} made no step for {silent_s:.0f} s (step {found.step}, {phase}; its process "
                f"{found.process_id} {state or 'still runs'})"
            )
        return Hang(found.rank, f"{what}, so the session was ended.")

    def _limit_s(self, seen: _Seen) -> float:
        return self._hang_timeout_s * (_COMPILING_FACTOR if seen.beat.phase == _COMPILING else 1)
