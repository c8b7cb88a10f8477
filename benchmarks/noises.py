"""What makes step times of a simulated race differ: the machine, slow steps of an arm, a rhythm."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """What makes step times differ within a launch."""

    step_s: float = 0.04
    spread: float = 0.105
    """Standard deviation of ln(step time), correlated by 0.4 from step to step."""
    stalls: float = 0.5
    """Stalls of the machine in a second, whatever runs; each adds an exponential time of `stall_s` on average."""
    stall_s: float = 0.08
    bursts: float = 0.1
    """Slow-down of all steps while other work runs: half of the time, for two seconds on average."""
    drift: float = 0.05
    """Standard deviation of a random walk of ln(step time) over 60 s."""
    own: tuple[tuple[float, float], tuple[float, float]] = ((0.0, 0.0), (0.0, 0.0))
    """Of baseline and strategy: chance that a step is slow by itself, and by how many seconds on average."""
    periodic: tuple[tuple[int, float], tuple[int, float]] = ((0, 0.0), (0, 0.0))
    """Of either: that every n-th of all steps is longer, by that much."""

    def mean_s(self, log_ratio: float) -> tuple[float, float]:
        """Mean step of baseline and strategy, in seconds: what the user's clock shows."""
        bursts = 1.0 + self.bursts / 2.0
        noise = math.exp(self.spread**2 / 2.0) * bursts
        found = []
        for place, base_s in enumerate((self.step_s, self.step_s * math.exp(-log_ratio))):
            chance, seconds = self.own[place]
            every, longer_s = self.periodic[place]
            mean_s = base_s * noise * (1.0 + self.stalls * self.stall_s)
            found.append(mean_s + chance * seconds + (longer_s / every if every else 0.0))
        return found[0], found[1]

    def truth(self, log_ratio: float) -> float:
        """What of an injected ln ratio the user's clock shows."""
        baseline_s, strategy_s = self.mean_s(log_ratio)
        return math.log(baseline_s / strategy_s)


CALM = Noise(spread=0.02, stalls=0.05, stall_s=0.04, bursts=0.0, drift=0.01)
NOISES: Mapping[str, Noise] = {
    "calm": CALM,
    "usual": Noise(),
    "noisy": Noise(spread=0.2, stalls=1.2, stall_s=0.08, bursts=0.2, drift=0.1),
    "over-subscribed": Noise(spread=0.35, stalls=3.0, stall_s=0.24, bursts=0.3, drift=0.2),
}
HOSTILE: Mapping[str, Noise] = {
    "long rare stalls of the machine": replace(CALM, stalls=0.05, stall_s=1.0),
    "strategy: 1 step of 10 is slow": replace(CALM, own=((0.0, 0.0), (0.1, 0.04))),
    "strategy: 2 steps of 30 are slow": replace(CALM, periodic=((0, 0.0), (15, 0.04))),
    "strategy: rare, long stalls": replace(CALM, own=((0.0, 0.0), (0.004, 1.0))),
    "baseline: every 4th step is long": replace(CALM, periodic=((4, 0.08), (0, 0.0))),
    "baseline: every 6th step is long": replace(CALM, periodic=((6, 0.08), (0, 0.0))),
    "both: every 50th step saves": replace(CALM, periodic=((50, 1.0), (50, 1.0))),
    "both bunched, in fours": replace(CALM, periodic=((4, 0.08), (4, 0.08))),
}
"""Slow steps that are not the machine's, or that are nothing but."""


def draw_times(noise: Noise, base_s: _Array, place: NDArray[np.int_], dice: np.random.Generator) -> _Array:
    """Draw successive steps of one launch; `base_s` and `place` (0: the baseline) are of each step."""
    count = len(base_s)
    logs = noise.spread * _correlate(dice.standard_normal(count), 0.4)
    logs += noise.drift * math.sqrt(noise.step_s / 60.0) * np.cumsum(dice.standard_normal(count))
    if noise.bursts:
        flips = dice.random(count) < noise.step_s / 2.0
        logs += math.log1p(noise.bursts) * ((np.cumsum(flips) + dice.integers(2)) % 2)
    times: _Array = base_s * np.exp(logs)
    struck = dice.random(count) < noise.stalls * times
    times = times + struck * dice.exponential(noise.stall_s, count) if noise.stalls else times
    for which in (0, 1):
        chance, seconds = noise.own[which]
        every, longer_s = noise.periodic[which]
        if chance:
            times = times + (place == which) * (dice.random(count) < chance) * dice.exponential(
                seconds, count
            )
        if every:
            times = times + (place == which) * (np.arange(count) % every == every - 1) * longer_s
    return times


def _correlate(shocks: _Array, correlation: float) -> _Array:
    """A moving sum of shocks with about the variance and short memory of a first-order autoregression."""
    weights = correlation ** np.arange(8)
    result: _Array = np.convolve(shocks, weights / math.sqrt(float(weights @ weights)))[: len(shocks)]
    return result
