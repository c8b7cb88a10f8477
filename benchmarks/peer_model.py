"""What every way to search looks like to the comparison: it asks for a strategy and is told what that measured.

A strategy is a place on the axis of each knob. Ordered knobs are integers (on a surface's own, log-like spacing, which
helps the peers), others are categories.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Places = dict[str, int]
PENALTY = 0.2
"""How far below the worst measured value a failed strategy is told, in units of ln(throughput)."""


@dataclass(frozen=True)
class Axis:
    """One knob as a peer sees it."""

    count: int
    ordered: bool
    baseline: int
    """Place of the script's own value."""


class Peer(ABC):
    """One search, from its first question on."""

    def __init__(self, space: Mapping[str, Axis], seed: int, first: Sequence[Places] = ()) -> None:
        self.space = space
        self.seed = seed
        self.first = list(first)
        """Strategies that it is given to begin with, best first: our rules of thumb; none in its own form."""

    @abstractmethod
    def ask(self) -> Places:
        """Return the next strategy to measure."""

    @abstractmethod
    def tell(self, value: float, error: float) -> None:
        """Take note of what the strategy just asked about measured: ln(throughput) and its standard error.

        A failed one is told as `PENALTY` below the worst.
        """

    def baseline(self) -> Places:
        """Return the script as it stands."""
        return {knob: axis.baseline for knob, axis in self.space.items()}
