"""Blocks that were read before: a job's history is read again and again, and most of it never changes any more."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime

from advisor.protocol.measured.trials import Block

MOST_STEPS = 2_000_000
"""Timed steps of all blocks that are kept: some 64 MB. Those that were not asked for longest go first."""


@dataclass(frozen=True)
class Mark:
    """All that may still change in a block once it is measured or given up; the rest is written once."""

    state: str
    note: str
    finished_at: datetime | None
    utilisation: float | None
    telemetry: str
    """The JSON document as it is stored."""


class KnownBlocks:
    """Blocks by id, each with the mark it was read with; share it between threads.

    A block is given out only for the mark that the database shows now, so that nothing outdated is ever seen.
    """

    def __init__(self, most_steps: int = MOST_STEPS) -> None:
        self._most_steps = most_steps
        self._lock = threading.Lock()
        self._blocks: OrderedDict[str, tuple[Mark, Block]] = OrderedDict()
        self._steps = 0

    def find(self, marks: dict[str, Mark]) -> dict[str, Block]:
        """Return the blocks that are known under these marks."""
        found = {}
        with self._lock:
            for block_id, mark in marks.items():
                known = self._blocks.get(block_id)
                if known is not None and known[0] == mark:
                    self._blocks.move_to_end(block_id)
                    found[block_id] = known[1]
        return found

    def keep(self, block: Block, mark: Mark) -> None:
        """Keep a block that was read from what is committed."""
        with self._lock:
            if (before := self._blocks.pop(block.id, None)) is not None:
                self._steps -= _weigh(before[1])
            self._blocks[block.id] = mark, block
            self._steps += _weigh(block)
            while self._steps > self._most_steps:
                _, (_, oldest) = self._blocks.popitem(last=False)
                self._steps -= _weigh(oldest)


def _weigh(block: Block) -> int:
    """Steps that a block's result holds the times of; what else there is of it takes as much memory as four hundred."""
    return 400 + (len(block.result.step_time_s) if block.result else 0)
