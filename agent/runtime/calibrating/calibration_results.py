"""Merges what all ranks watched in a calibrating block: gradients, links, the gradient's noise. Pure functions."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..link.measured import Calibration, Ceiling, GradientNoise, GradientTiming, LinkTiming

MOST_GRADIENTS = 2000
"""Longer lists are shortened by joining neighbours: the report has to fit into one message."""
LEAST_STEPS = 2


@dataclass(frozen=True)
class RankCalibration:
    """What one rank watched, as plain numbers; each list as the function that merges it takes it."""

    gradients: List[Any]
    links: List[Dict[str, Any]]
    noise: List[Any]
    ceiling: Optional[Dict[str, Any]] = None


def merge_calibrations(parts: Sequence[Optional[RankCalibration]]) -> Optional[Calibration]:
    """One part per rank, in rank order; None when some rank did not come to the end of its calibration."""
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    return Calibration(
        merge_gradients([part.gradients for part in known]),
        merge_links([part.links for part in known]),
        merge_noise([part.noise for part in known]),
        merge_ceilings([part.ceiling for part in known]),
    )


def merge_ceilings(ranks: Sequence[Optional[Mapping[str, Any]]]) -> Optional[Ceiling]:
    """Sums over the ranks, in the number format of the first; what one rank refuses is refused."""
    told = [rank for rank in ranks if rank is not None]
    if not told:
        return None
    refusal = next((rank["refusal"] for rank in told if rank["refusal"]), "")
    return Ceiling(
        0.0 if refusal else math.fsum(rank["operations"] for rank in told),
        0.0 if refusal else math.fsum(rank["rate"] for rank in told),
        told[0]["number_format"],
        refusal,
    )


def merge_gradients(ranks: Sequence[Sequence[Sequence[float]]]) -> Tuple[GradientTiming, ...]:
    """Per rank pairs of bytes and seconds in the model's order, seconds None where backward made no such gradient.

    Returned in the order in which backward makes them; seconds are medians over the ranks that saw the gradient.
    """
    found: List[Tuple[float, int]] = []
    for views in zip(*ranks):
        seen = [ready_s for _, ready_s in views if ready_s is not None and math.isfinite(ready_s)]
        if seen:
            found.append((max(0.0, statistics.median(seen)), int(views[0][0])))
    found.sort(key=lambda gradient: gradient[0])
    together = -(-len(found) // MOST_GRADIENTS) or 1
    groups = [found[start : start + together] for start in range(0, len(found), together)]
    return tuple(GradientTiming(sum(size for _, size in group), round(group[-1][0], 7)) for group in groups)


def merge_links(ranks: Sequence[Sequence[Mapping[str, Any]]]) -> Tuple[LinkTiming, ...]:
    """Each collective with its slowest rank; ranks that took no part in one have no entry for it."""
    slowest: Dict[Tuple[str, int, int], LinkTiming] = {}
    for entry in (entry for entries in ranks for entry in entries):
        key = (entry["level"], entry["concurrent"], entry["bytes"])
        if key not in slowest or entry["seconds"] > slowest[key].seconds:
            slowest[key] = LinkTiming(**entry)
    return tuple(link for link in slowest.values() if math.isfinite(link.seconds) and link.seconds > 0)


def merge_noise(ranks: Sequence[Sequence[Sequence[float]]]) -> Optional[GradientNoise]:
    """Per rank one entry a step: squared norm of its own gradient, of the averaged one, and its samples.

    A step in which a gradient of any rank was not finite (an overflow under a loss scale) is left out.
    """
    steps = [step for step in zip(*ranks) if all(math.isfinite(number) for entry in step for number in entry)]
    if len(steps) < LEAST_STEPS:
        return None
    samples = [[entry[2] for entry in step] for step in steps]
    large_batch = statistics.fmean(sum(step) for step in samples)
    if large_batch <= 0:
        return None
    return GradientNoise(
        small_batch=large_batch / len(ranks),
        large_batch=large_batch,
        small_square=statistics.fmean(statistics.fmean(entry[0] for entry in step) for step in steps),
        large_square=statistics.fmean(statistics.fmean(entry[1] for entry in step) for step in steps),
        steps=len(steps),
    )
