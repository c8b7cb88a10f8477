"""A recorded surface whose truth is known: what a recording shows, less its noise, and races drawn afresh around that.

A recording's own cells are no truth: the best of many noisy ones is partly luck. So its cells are fitted
(`fit_truths`), and every race of a replay, the second one of a pair too, draws new noise of the size that the
recording's repeats show. What is replayed is then a machine of known truth that is like the recorded one.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from statistics import fmean, median, stdev

import numpy as np
from played_race import Heat
from surface_model import Cell, Key, Launch, Repeat, Surface, rescale

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.measured.results import BlockResult, Calibration
from advisor.protocol.nodes.cluster import Cluster
from advisor.protocol.training.workload import WorkloadFacts

RUN_NOISE = 0.015
"""Standard deviation of ln(step time) from block to block where a recording has no repeats."""
STEP_NOISE = 0.03
"""The same from step to step, where a block is a single number."""
FEWEST_STEPS = 24
"""A recorded block of fewer steps is read round and round up to this many."""
_RIDGE = 1.0
"""Weight of the fit's penalty, in units of a cell: an effect that few cells show counts for little."""


@dataclass(frozen=True, eq=False)
class RecordedSurface(Surface):
    """A surface read from a file."""

    name: str
    how: str
    allow: Effect
    grid: Mapping[str, tuple[Value, ...]]
    baseline: Mapping[str, Value]
    facts: WorkloadFacts
    cluster: Cluster
    calibration: Calibration | None
    cells: dict[Key, Cell] = field(default_factory=dict)
    levels: tuple[tuple[int, int, float], ...] = ()
    """Session, order and ln(throughput) of the recorded baseline blocks, less their median."""

    def find(self, changes: Mapping[str, Value]) -> Cell:
        """Return the cell of these changes; the nearest recorded one where there is none."""
        return self.nearest(self.key_of(changes))

    def nearest(self, key: Key) -> Cell:
        """Return the cell fewest places away from the key; the earlier in the file of two."""
        if (cell := self.cells.get(key)) is not None:
            return cell
        kinds = [
            isinstance(values[0], int | float) and not isinstance(values[0], bool)
            for values in self.grid.values()
        ]

        def distance(other: Key) -> int:
            return sum(
                (abs(a - b) if ordered else int(a != b))
                for a, b, ordered in zip(key, other, kinds, strict=True)
            )

        return self.cells[min(self.cells, key=distance)]

    @cached_property
    def best(self) -> Cell:
        """The cell of the highest truth."""
        return max(self.cells.values(), key=lambda cell: -math.inf if cell.truth is None else cell.truth)

    @cached_property
    def run_noise(self) -> float:
        """Standard deviation of a cell's block around the cell, the neighbours' part taken out."""
        squares, freedom = 0.0, 0
        for cell in self.cells.values():
            if len(cell.repeats) > 1 and cell.changes:
                centre = fmean(repeat.deviation for repeat in cell.repeats)
                squares += sum(
                    (r.deviation - centre) ** 2 * r.anchors / (r.anchors + 1)
                    if r.anchors
                    else (r.deviation - centre) ** 2
                    for r in cell.repeats
                )
                freedom += len(cell.repeats) - 1
        return math.sqrt(squares / freedom) if freedom else RUN_NOISE

    @property
    def truth_error(self) -> float:
        """Standard error of the difference of two strategies, by as many repeats as the best one has."""
        return self.run_noise * math.sqrt(2.0 * _share(self.best)) if self.best.repeats else self.run_noise

    @cached_property
    def step_noise(self) -> float:
        """Median standard deviation of ln(step time) within blocks of several steps."""
        spreads = [
            stdev(math.log(t) for t in r.result.step_time_s)
            for cell in self.cells.values()
            for r in cell.repeats
            if len(r.result.step_time_s) >= 5 and r.result.period == 1
        ]
        return median(spreads) if spreads else STEP_NOISE

    def weather(self, dice: random.Random) -> Iterator[float]:
        """Walk through the recorded baseline blocks there and back from a random start."""
        if len(self.levels) < 3:
            while True:
                yield 0.0
        path = [level for _, _, level in self.levels]
        gaps = [b - a for (s, a, _), (z, b, _) in pairwise(self.levels) if s == z and b > a]
        stride = 1.0 / (fmean(gaps) if gaps else 1.0)
        span = 2.0 * (len(path) - 1)
        at = dice.random() * span
        while True:
            place = at if at <= span / 2 else span - at
            below = min(int(place), len(path) - 2)
            yield path[below] + (path[below + 1] - path[below]) * (place - below)
            at = (at + stride) % span

    def launch(self, dice: random.Random) -> "RecordedLaunch":
        """Return a launch that reads the recording."""
        return RecordedLaunch(self, dice)

    @cached_property
    def race_noise(self) -> float:
        """Standard deviation of an arm's luck in one race: the blocks' noise, less what their steps explain."""
        within = [
            stdev(math.log(t) for t in r.result.step_time_s) ** 2 / len(r.result.step_time_s)
            for cell in self.cells.values()
            for r in cell.repeats
            if len(r.result.step_time_s) >= 5 and r.result.period == 1
        ]
        return math.sqrt(max(0.0, self.run_noise**2 - (fmean(within) if within else 0.0)))

    @cached_property
    def centre(self) -> float:
        """ln(samples per second) of the baseline, the median of its blocks."""
        return median(r.rate for cell in self.cells.values() if not cell.changes for r in cell.repeats)


def fit_truths(surface: RecordedSurface) -> RecordedSurface:
    """Return the surface with a truth for each finished cell: the posterior mean of its deviation.

    The prior is an additive model of the knobs' values with their pairs, fitted with a ridge to the cells' means; a
    cell keeps as much of its distance to that as the distances of all cells are larger than their noise explains. The
    baseline's is 0.
    """
    known = [
        cell for cell in surface.cells.values() if cell.changes and cell.repeats and cell.truth is not None
    ]
    if not known:
        return surface
    means = np.array([fmean(r.deviation for r in cell.repeats) for cell in known])
    noise = np.array([surface.run_noise**2 * _share(cell) for cell in known])
    design = np.array([_list_effects(surface, cell.key) for cell in known])
    penalty = _RIDGE * np.eye(design.shape[1])
    penalty[0, 0] = 1e-6
    hat = design @ np.linalg.solve(design.T @ design + penalty, design.T)
    fitted = hat @ means
    free = max(1.0, len(known) - float(np.trace(hat)))
    spread = max(0.0, float(((means - fitted) ** 2).sum()) / free - float(noise.mean()))
    truths = fitted + spread / (spread + noise + 1e-12) * (means - fitted)
    posterior = {cell.key: float(truth) for cell, truth in zip(known, truths, strict=True)}
    return replace(
        surface,
        cells={
            key: replace(cell, truth=posterior.get(key, cell.truth)) for key, cell in surface.cells.items()
        },
    )


def _share(cell: Cell) -> float:
    """Variance of the cell's mean deviation, in units of a block's: its own blocks and the baseline's beside them."""
    return fmean(1.0 + 1.0 / r.anchors if r.anchors else 1.0 for r in cell.repeats) / len(cell.repeats)


def _list_effects(surface: RecordedSurface, key: Key) -> list[float]:
    """One, then an indicator of each value that is not the baseline's, then of each pair of those."""
    own = surface.key_of({})
    single = [
        float(place == at)
        for at, base, values in zip(key, own, surface.grid.values(), strict=True)
        for place in range(len(values))
        if place != base
    ]
    pairs = [a * b for i, a in enumerate(single) for b in single[i + 1 :]]
    return [1.0, *single, *pairs]


class RecordedLaunch(Launch):
    """Draws races: every arm at its true distance to the baseline and its luck, with a recorded block's steps."""

    def __init__(self, surface: RecordedSurface, dice: random.Random) -> None:
        self._surface, self._dice = surface, dice
        self._weather = surface.weather(dice)
        self._scales: dict[Key, tuple[Repeat, float]] = {}

    def race(self, cells: Sequence[Cell]) -> Heat:
        """Return a race whose arms share the drift, and have each a luck of its own that no other race has."""
        level = next(self._weather) + self._surface.centre
        series = []
        for cell in cells:
            if cell.truth is None:
                raise ValueError(
                    f"{cell.changes} of {self._surface.name} ended as {cell.outcome.value}: no step of it"
                )
            repeat = self._dice.choice(cell.repeats)
            luck = self._dice.gauss(0.0, self._surface.race_noise)
            scale = math.exp(repeat.rate - level - cell.truth - luck)
            self._scales[cell.key] = (repeat, scale)
            series.append(self._lengthen(repeat.result, scale))
        return _RecordedHeat(series)

    def describe(self, cell: Cell, times: Sequence[float]) -> BlockResult:
        """Return the recorded block with the race's steps."""
        repeat, scale = self._scales[cell.key]
        return rescale(repeat.result, times, scale)

    def _lengthen(self, result: BlockResult, scale: float) -> list[float]:
        """The block's steps from a random start on, read round once; a single number becomes steps around it."""
        times, period = result.step_time_s, result.period
        if len(times) < 5 * period:
            mean, noise = median(times) if period == 1 else fmean(times), self._surface.step_noise
            return [
                scale * mean * math.exp(self._dice.gauss(0.0, noise))
                for _ in range(max(FEWEST_STEPS, 2 * period))
            ]
        whole = len(times) - len(times) % period
        start = self._dice.randrange(whole // period) * period
        return [scale * times[(start + i) % whole] for i in range(whole)]


class _RecordedHeat(Heat):
    """Steps in their recorded order, read round."""

    def __init__(self, series: Sequence[Sequence[float]]) -> None:
        self._series = series
        self._next = [0] * len(series)
        self.longest = max(FEWEST_STEPS, max(len(times) for times in series))

    def step(self, arm: int, since: int) -> float:
        """Return the next recorded step. Untimed ones are the block's first again, so that all are timed."""
        times = self._series[arm]
        if since == 0:
            return times[0]
        self._next[arm] += 1
        return times[(self._next[arm] - 1) % len(times)]
