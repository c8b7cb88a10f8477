"""A recorded surface: what a launch, a race and a step of it are drawn from, and which half of it is the truth."""

import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from statistics import fmean, median, stdev

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
_DRAWS = 1000
"""Draws of a surface's noise: its floor is known within a twentieth."""


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
    allowed_error: float | None = None

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
    def floor(self) -> float:
        """Regret that decides nothing: what a perfect search shows, and the error of a difference of two strategies."""
        if self.allowed_error is not None:
            return self.allowed_error
        error = math.sqrt(2.0) * self.deviation_error / math.sqrt(max(1, len(self.best.repeats)))
        return -math.expm1(-self.luck_of_the_best - error)

    @cached_property
    def luck_of_the_best(self) -> float:
        """ln(throughput) that the truly best strategy seems to lack: the best of many noisy truths is partly luck.

        Simulated: true values are the means of all repeats, drawn together by as much as their noise spread them; the
        noise is that of the half that a split leaves for the truth.
        """
        cells = [cell for cell in self.cells.values() if cell.changes and cell.truth is not None]
        known = {cell.key: fmean(r.deviation for r in cell.repeats) for cell in cells}
        if len(known) < 2:
            return 0.0
        middle = median(known.values())
        noise = [self.deviation_error / math.sqrt(len(cell.repeats)) for cell in cells]
        spread = max(stdev(known.values()), 1e-9)
        keep = math.sqrt(max(0.0, 1.0 - fmean(n * n for n in noise) / spread**2))
        truths = [middle + keep * (value - middle) for value in known.values()]
        halves = [self.deviation_error / math.sqrt(max(1, len(cell.repeats) // 2)) for cell in cells]
        best = max(range(len(truths)), key=truths.__getitem__)
        dice, lost = random.Random(self.name), []
        for _ in range(_DRAWS):
            seen = [truth + dice.gauss(0.0, error) for truth, error in zip(truths, halves, strict=True)]
            lost.append(max(0.0, *seen) - seen[best])
        return fmean(lost)

    @property
    def deviation_error(self) -> float:
        """Standard deviation of one deviation: of the block itself, and of the two baseline blocks beside it."""
        return self.run_noise * math.sqrt(1.5)

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
    def turns(self) -> int:
        """Passes of the recording: how often most strategies were measured."""
        return max(r.turn for cell in self.cells.values() for r in cell.repeats) + 1

    def split(self, seed: int) -> "RecordedSurface":
        """Return the surface as half of the passes show it, with the truth of the other half.

        Neighbouring even and odd seeds get the two halves of one division. A cell that one of the halves lacks keeps
        all of its repeats for both; a recording of a single pass cannot be divided.
        """
        if self.turns < 2:
            return self
        passes = list(range(self.turns))
        random.Random(f"{self.name} {seed // 2}").shuffle(passes)
        half = self.turns // 2
        shown = set(passes[:half] if seed % 2 == 0 else passes[half:])
        return replace(self, cells={key: _divide(cell, shown) for key, cell in self.cells.items()})

    @cached_property
    def centre(self) -> float:
        """ln(samples per second) of the baseline, the median of its blocks."""
        return median(r.rate for cell in self.cells.values() if not cell.changes for r in cell.repeats)


def _divide(cell: Cell, shown: Collection[int]) -> Cell:
    """The repeats of these passes, with the truth of the others."""
    mine = tuple(r for r in cell.repeats if r.turn in shown)
    others = [r.deviation for r in cell.repeats if r.turn not in shown]
    if not mine or not others:
        return cell
    truth = fmean(others) if cell.changes and cell.truth is not None else cell.truth
    return replace(cell, repeats=mine, truth=truth)


class RecordedLaunch(Launch):
    """Reads a recording: the arms of one race come from one of its passes."""

    def __init__(self, surface: RecordedSurface, dice: random.Random) -> None:
        self._surface, self._dice = surface, dice
        self._weather = surface.weather(dice)
        self._turns = sorted({r.turn for r in surface.find({}).repeats})
        dice.shuffle(self._turns)
        self._races = 0
        self._scales: dict[Key, tuple[Repeat, float]] = {}

    def race(self, cells: Sequence[Cell]) -> Heat:
        """Return a race whose arms keep the distance to the baseline that they had in a pass of the recording."""
        turn = self._turns[self._races % len(self._turns)]
        self._races += 1
        level = next(self._weather) + self._surface.centre
        series = []
        for cell in cells:
            if cell.truth is None:
                raise ValueError(
                    f"{cell.changes} of {self._surface.name} ended as {cell.outcome.value}: no step of it"
                )
            repeat = self._dice.choice([r for r in cell.repeats if r.turn == turn] or cell.repeats)
            distance = repeat.deviation if cell.changes else 0.0
            if cell.changes and len(cell.repeats) == 1 and self._surface.turns < 2:
                distance += self._dice.gauss(0.0, self._surface.run_noise)
            scale = math.exp(repeat.rate - level - distance)
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
