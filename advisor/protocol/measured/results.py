"""What agents and ranks tell each other of a race, as the runtime declares it: pydantic validates it as it is."""

from agent.runtime.link.measured import (
    NOTICEABLE_S,
    PHASE_NAMES,
    BlockResult,
    Calibration,
    GradientNoise,
    GradientTiming,
    LateRank,
    LinkLevel,
    LinkTiming,
    Phases,
)
from agent.runtime.races.order import RaceRules

__all__ = [
    "NOTICEABLE_S",
    "PHASE_NAMES",
    "BlockResult",
    "Calibration",
    "GradientNoise",
    "GradientTiming",
    "LateRank",
    "LinkLevel",
    "LinkTiming",
    "Phases",
    "RaceRules",
]
