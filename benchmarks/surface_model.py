"""A surface: the strategies of a grid, what each was measured at, and how a replayed block is drawn from that."""

import math
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from statistics import fmean, median, stdev

from sessions import ROOT

sys.path.insert(0, str(ROOT))

from advisor.protocol.base import Value
from advisor.protocol.calibration import Calibration
from advisor.protocol.cluster import Cluster
from advisor.protocol.jobs import Job, JobSpec, JobState
from advisor.protocol.knobs import Effect
from advisor.protocol.strategy import DistributedStrategy, Layout, Strategy
from advisor.protocol.trials import BlockResult, Outcome, Phases
from advisor.protocol.workload import Workload, WorkloadFacts
from advisor.tuning.composition import Composer, baseline_strategy, describe_changes

Key = tuple[int, ...]
"""Places of a strategy's values in the grid, idle knobs at the baseline's: what a cell is found by."""
RUN_NOISE = 0.015
"""Standard deviation of ln(step time) from block to block where a recording has no repeats."""
STEP_NOISE = 0.03
"""The same from step to step, where a block is a single number."""
FEWEST_STEPS = 24
"""A recorded block of fewer steps is read round and round up to this many."""


@dataclass(frozen=True)
class Repeat:
    """One recorded block of a cell."""

    result: BlockResult
    """What a block of these steps is answered with; `step_time_s` is what was recorded."""
    rate: float
    """ln(samples per second), from the median over its periods."""
    deviation: float
    """ln(throughput / neighbouring baseline blocks')."""
    anchors: int = 2
    """Baseline blocks behind the deviation; 0 where it is against the median of all of them."""


@dataclass(frozen=True)
class Cell:
    """One strategy of a surface."""

    key: Key
    changes: Mapping[str, Value]
    outcome: Outcome
    reason: str
    truth: float | None
    """ln(throughput / baseline's); None where the strategy fails."""
    repeats: tuple[Repeat, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What one replayed block says: a result, or how the strategy failed."""

    cell: Cell
    result: BlockResult | None
    note: str = ""
    """A sentence where the strategy itself was not recorded and its nearest neighbour answers."""


class Surface(ABC):
    """A workload on a cluster whose strategies can be measured without training anything."""

    name: str
    how: str
    allow: Effect
    grid: Mapping[str, tuple[Value, ...]]
    """Values of each knob, the baseline's among them, ordered where they are numbers."""
    baseline: Mapping[str, Value]
    facts: WorkloadFacts
    cluster: Cluster
    calibration: Calibration | None

    @abstractmethod
    def find(self, changes: Mapping[str, Value]) -> Cell:
        """Return the cell of these changes, or the one that answers for them."""

    @property
    @abstractmethod
    def best(self) -> Cell:
        """The cell of the highest truth."""

    @property
    @abstractmethod
    def floor(self) -> float:
        """Regret below which the surface cannot tell strategies apart."""

    @abstractmethod
    def draw(self, cell: Cell, level: float, steps: int, dice: random.Random) -> BlockResult:
        """Return a block of the cell of at most `steps` steps while the machine runs at `level` (ln of its speed)."""

    @abstractmethod
    def weather(self, dice: random.Random) -> Iterator[float]:
        """Yield the machine's ln speed from block to block, without end."""

    def measure(self, changes: Mapping[str, Value], level: float, steps: int, dice: random.Random) -> Answer:
        """Return what a block of these changes says."""
        cell = self.find(changes)
        note = ""
        if cell.key != self.key_of(changes):
            note = f"{describe_changes(changes)} was not recorded: {describe_changes(cell.changes)} answers for it."
        if cell.truth is None:
            return Answer(cell, None, note)
        return Answer(cell, self.draw(cell, level, steps, dice), note)

    def regret(self, changes: Mapping[str, Value]) -> float:
        """Return the share of the best strategy's throughput that these changes give away; 1 where they fail."""
        truth = self.find(changes).truth
        best = self.best.truth
        if truth is None or best is None:
            return 1.0
        return max(0.0, -math.expm1(truth - best))

    @cached_property
    def job(self) -> Job:
        """A job on this surface, in the state in which its first session has said hello."""
        spec = JobSpec(
            name=self.name,
            workload=Workload(command=("torchrun", "train.py")),
            nodes=self.facts.nodes,
            allow=self.allow,
            knobs=tuple(self.grid),
            values=dict(self.grid),
        )
        return Job(
            id=self.name, spec=spec, state=JobState.RUNNING, created_at=datetime(2026, 1, 1, tzinfo=UTC),
            facts=self.facts, cluster=self.cluster, baseline=dict(self.baseline),
        )  # fmt: skip

    @cached_property
    def base(self) -> Strategy:
        """The baseline as a whole strategy."""
        return baseline_strategy(self.job)

    @cached_property
    def composer(self) -> Composer:
        """Makes sound strategies of wishes, as the search does."""
        return Composer(
            baseline=self.base,
            layout=Layout(world_size=self.facts.world_size, nodes=self.facts.nodes),
            local_world_size=self.facts.local_world_size,
            frozen=frozenset(),
        )

    def key_of(self, changes: Mapping[str, Value]) -> Key:
        """Return the places of these changes in the grid; idle knobs stand at the baseline's value."""
        strategy = DistributedStrategy.from_changes(changes, base=self.base)
        active = {**self.base.values(), **strategy.changes_from(self.base)}
        return tuple(place_of(values, active[knob]) for knob, values in self.grid.items())

    def changes_at(self, places: Mapping[str, int]) -> dict[str, Value]:
        """Return the sound strategy at these places of the grid: how methods that know no coupling rules are helped.

        Where a rule forbids the combination, knobs go back to the baseline from the last one on until it is sound.
        """
        wishes = {knob: self.grid[knob][place] for knob, place in places.items()}
        names = list(wishes)
        while True:
            strategy = DistributedStrategy.from_changes(wishes, base=self.base)
            if not strategy.changes_from(self.base):
                return {}
            if (changes := self.composer.compose(wishes)) is not None:
                return changes
            if not names:
                return {}
            wishes.pop(names.pop())

    def describe(self) -> str:
        """The surface in a few lines."""
        best = self.best
        sizes = " × ".join(f"{knob} {len(values)}" for knob, values in self.grid.items())
        return (
            f"{self.name} ({self.allow.value}): {sizes}\n  {self.how}\n"
            f"  best {describe_changes(best.changes)}: {math.expm1(best.truth or 0.0):+.1%}; "
            f"noise floor {self.floor:.2%}"
        )


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
        """Standard error of the best cell's truth: run noise over the root of its repeats, as a median's."""
        if self.allowed_error is not None:
            return self.allowed_error
        return 1.25 * self.run_noise / math.sqrt(max(1, len(self.best.repeats)))

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

    def draw(self, cell: Cell, level: float, steps: int, dice: random.Random) -> BlockResult:
        """One recorded block of the cell at this level, its steps read round from a random start."""
        if cell.truth is None:
            raise ValueError(
                f"{cell.changes} of {self.name} ended as {cell.outcome.value}: there is no block of it"
            )
        repeat = dice.choice(cell.repeats)
        count, anchors = len(cell.repeats), repeat.anchors
        if count > 1:
            # Residuals around a centre of few repeats are too small, and carry the noise of the anchors besides.
            factor = math.sqrt(count / (count - 1)) * math.sqrt(anchors / (anchors + 1) if anchors else 1.0)
            luck = (repeat.deviation - cell.truth) * factor
        else:
            luck = dice.gauss(0.0, self.run_noise)
        times = self._lengthen(repeat.result, steps, dice)
        scale = math.exp(repeat.rate - (level + self.centre + cell.truth + luck))
        return rescale(repeat.result, times, scale)

    @cached_property
    def centre(self) -> float:
        """ln(samples per second) of the baseline, the median of its blocks."""
        return median(r.rate for cell in self.cells.values() if not cell.changes for r in cell.repeats)

    def _lengthen(self, result: BlockResult, steps: int, dice: random.Random) -> list[float]:
        times, period = list(result.step_time_s), result.period
        if len(times) < 5 * period:
            mean = median(times) if period == 1 else fmean(times)
            return [
                mean * math.exp(dice.gauss(0.0, self.step_noise)) for _ in range(max(steps, FEWEST_STEPS))
            ]
        whole = len(times) - len(times) % period
        wanted = min(steps, max(whole, FEWEST_STEPS))
        start = dice.randrange(whole // period) * period
        return [times[(start + i) % whole] for i in range(-(-wanted // period) * period)]


def rescale(result: BlockResult, times: Sequence[float], scale: float) -> BlockResult:
    """Return the result with other steps, all times multiplied by `scale`."""
    scaled = tuple(t * scale for t in times)
    phases = Phases.model_validate({k: v and v * scale for k, v in result.phases.model_dump().items()})
    return result.model_copy(
        update={
            "steps": len(scaled),
            "step_time_s": scaled,
            "samples": result.samples_per_step * len(scaled),
            "wall_s": sum(scaled),
            "phases": phases,
            "worst_rank_phases": phases,
            "losses": result.losses[: len(scaled)],
        }
    )


def place_of(values: Sequence[Value], value: Value) -> int:
    """Return the place of a value, or of the nearest number."""
    if value in values:
        return list(values).index(value)
    if isinstance(value, str | bool):
        return 0
    return min(range(len(values)), key=lambda i: abs(_log(values[i]) - _log(value)))


def _log(value: Value) -> float:
    return math.log(max(float(value), 1e-9))
