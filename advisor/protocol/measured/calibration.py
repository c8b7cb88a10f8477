"""What a probe measures beside step times: gradients as they become ready, links, the gradient's noise."""

from enum import StrEnum

from pydantic import Field

from advisor.protocol.base import Message


class GradientTiming(Message):
    """One parameter's gradient, in the order in which backward produces them."""

    bytes: int
    """Its size."""
    ready_s: float
    """Seconds from the start of backward until it was ready, without communication; median over steps and ranks."""


class LinkLevel(StrEnum):
    """Which ranks a collective was timed between."""

    WORLD = "world"
    """All ranks."""
    NODE = "node"
    """The ranks of one node."""
    ACROSS = "across"
    """One rank of each node."""


class LinkTiming(Message):
    """An allreduce of one size between the ranks of one level."""

    level: LinkLevel
    ranks: int
    """Ranks that took part in each collective."""
    bytes: int
    """Size of the reduced tensor."""
    seconds: float
    """Median time; the slowest rank's."""
    concurrent: int = 1
    """Collectives of that size that ran side by side, each over a process group of its own; `seconds` covers all."""


class GradientNoise(Message):
    """Squared norms that the gradient noise scale is made of (McCandlish et al. 2018, arXiv 1812.06162)."""

    small_batch: float
    """Samples behind one rank's gradient."""
    large_batch: float
    """Samples behind the averaged gradient of all ranks."""
    small_square: float = Field(ge=0)
    """Mean squared norm of the ranks' own gradients."""
    large_square: float = Field(ge=0)
    """Mean squared norm of the averaged gradient."""
    steps: int
    """Steps that the means were taken over."""


class Calibration(Message):
    """Everything that a calibrating block adds to its result; parts that could not be measured are empty."""

    gradients: tuple[GradientTiming, ...] = ()
    links: tuple[LinkTiming, ...] = ()
    noise: GradientNoise | None = None
