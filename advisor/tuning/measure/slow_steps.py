"""Whose are the slow steps? The machine's, the script's, or an arm's own: the three say different things of a ratio.

Slow steps of the machine come in every second alike, and a ratio without them is the ratio with them. Those of the
script (it saves, it logs) come in every step alike, and draw a ratio towards 1. In both cases what they take is shared
by the arms, so that most of the noise of a total cancels. Slow steps of one arm alone leave only the total.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from advisor.protocol.measured.trials import Contrast

_OWN_CHANCE = 0.15
"""Probability, before anything is measured, that an arm has slow steps of its own; otherwise they are as likely the
machine's as the script's."""
_OWN = 0.1
"""Standard deviation of what an arm's own slow steps do to ln(ratio), where it has some: 10 %."""
_LEAST_ERROR = 5e-4
"""Standard error of the difference of two figures that is always allowed for: 0.05 %."""


@dataclass(frozen=True)
class Reading:
    """What launches say where slow steps are of one kind."""

    chance: float
    """How likely that is."""
    means: tuple[float, ...]
    errors: tuple[float, ...]


def read_slow_steps(launches: Sequence[Contrast]) -> tuple[Reading, ...]:
    """Return what these races say under each of the three kinds, with how likely it is by Bayes' rule.

    Where arms share their slow steps, the total differs from the other figure by chance only: within the error of that
    difference; where one has some of its own, by 10 % besides. A race that saw no rare stall by chance knows
    nothing of how rare they are: so all races share one error of a cycle.
    """
    cycles = [max(1, c.cycles) for c in launches]
    whole = sum(cycles)
    error = max(
        _LEAST_ERROR,
        _share([c.excess_error for c in launches], cycles) / math.sqrt(whole),
    )
    total = _share([c.total_error for c in launches], cycles)
    figures = [[c.mean for c in launches], [c.per_step for c in launches]]
    totals = [c.total for c in launches]
    logs = [math.log(_OWN_CHANCE) + _log_density(_find_gap(totals, figures[0], cycles), error, _OWN)]
    logs += [
        math.log((1.0 - _OWN_CHANCE) / 2.0) + _log_density(_find_gap(totals, figure, cycles), error)
        for figure in figures
    ]
    weights = [math.exp(log - max(logs)) for log in logs]
    own, machine, script = (weight / math.fsum(weights) for weight in weights)
    capped = tuple(c.error for c in launches)
    return (
        Reading(machine, tuple(figures[0]), capped),
        Reading(script, tuple(figures[1]), capped),
        Reading(own, tuple(totals), tuple(total / math.sqrt(count) for count in cycles)),
    )


def settle(contrast: Contrast) -> tuple[float, float]:
    """Return the expected ln ratio of one race by its three readings, and its standard error."""
    readings = read_slow_steps([contrast])
    mean = math.fsum(r.chance * r.means[0] for r in readings)
    square = math.fsum(r.chance * (r.errors[0] ** 2 + (r.means[0] - mean) ** 2) for r in readings)
    return mean, math.sqrt(square)


def _share(errors: Sequence[float], cycles: Sequence[int]) -> float:
    """The error of one cycle that all races share."""
    return math.sqrt(math.fsum((n * e) ** 2 for n, e in zip(cycles, errors, strict=True)) / math.fsum(cycles))


def _find_gap(totals: Sequence[float], figures: Sequence[float], cycles: Sequence[int]) -> float:
    gaps = (n * (total - figure) for n, total, figure in zip(cycles, totals, figures, strict=True))
    return math.fsum(gaps) / sum(cycles)


def _log_density(value: float, error: float, more: float = 0.0) -> float:
    spread = math.hypot(error, more)
    return -0.5 * (value / spread) ** 2 - math.log(spread)
