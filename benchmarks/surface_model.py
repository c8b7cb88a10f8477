"""A surface: the strategies of a grid, what each was measured at, and how a replayed block is drawn from that."""

import math
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property

from played_race import Heat
from sessions import ROOT

sys.path.insert(0, str(ROOT))

from advisor.protocol.asked.jobs import Job, JobSpec, JobState
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes, period_of
from advisor.protocol.knobs.strategy import Layout
from advisor.protocol.measured.results import BlockResult, Calibration, Phases
from advisor.protocol.measured.trials import Outcome
from advisor.protocol.nodes.cluster import Cluster
from advisor.protocol.training.own_knobs import OwnKnob
from advisor.protocol.training.workload import Workload, WorkloadFacts
from advisor.tuning.space.composition import Composer, list_own_values

Key = tuple[int, ...]
"""Places of a strategy's values in the grid, idle knobs at the baseline's: what a cell is found by."""


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
    place: tuple[int, int] = (0, 0)
    """Session, and order in it."""


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


class Launch(ABC):
    """One launch of a surface's training: what its races share, and what one of them knows of the one before."""

    @abstractmethod
    def race(self, cells: Sequence[Cell]) -> Heat:
        """Return a race of these strategies, none of which fails."""

    @abstractmethod
    def describe(self, cell: Cell, times: Sequence[float]) -> BlockResult:
        """Return what the last race says of a strategy besides its steps: phases, buckets, samples, memory."""


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
    own: tuple[OwnKnob, ...] = ()
    """Knobs of the script's own; the grid and the baseline name them beside the catalogue's."""

    @abstractmethod
    def find(self, changes: Mapping[str, Value]) -> Cell:
        """Return the cell of these changes, or the one that answers for them."""

    @property
    @abstractmethod
    def best(self) -> Cell:
        """The cell of the highest truth."""

    @abstractmethod
    def launch(self, dice: random.Random) -> Launch:
        """Return a fresh launch of the training."""

    def draw(self, cell: Cell, steps: int, dice: random.Random) -> BlockResult:
        """Return a block of the cell that was measured alone, in a launch of its own."""
        launch = self.launch(dice)
        heat = launch.race([cell])
        count = min(steps, heat.longest)
        count = -(-count // max(1, period_of(cell.changes))) * max(1, period_of(cell.changes))
        return launch.describe(cell, [heat.step(0, since) for since in range(1, count + 1)])

    def note(self, changes: Mapping[str, Value]) -> str:
        """A sentence where these changes were not recorded and their nearest neighbour answers."""
        cell = self.find(changes)
        if cell.key == self.key_of(changes):
            return ""
        return f"{Changes(changes).describe()} was not recorded: {Changes(cell.changes).describe()} answers for it."

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
        options = [word for knob in self.own for word in (f"--{knob.name}", str(knob.own_value))]
        spec = JobSpec(
            name=self.name,
            workload=Workload(command=("torchrun", "train.py", *options), own=self.own),
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
    def standing(self) -> dict[str, Value]:
        """The script as it stands: a value of every knob."""
        return list_own_values(self.job)

    def values_of(self, changes: Mapping[str, Value]) -> dict[str, Value]:
        """Return a value of every knob under these changes, idle knobs at the baseline's."""
        catalogue = self.composer.catalogue
        values = {**self.standing, **catalogue.parse(changes)}
        return {
            name: self.standing[name]
            if value != self.standing[name] and catalogue[name].inactive_because(values)
            else value
            for name, value in values.items()
        }

    @cached_property
    def composer(self) -> Composer:
        """Makes sound strategies of wishes, as the search does."""
        return Composer(
            catalogue=self.job.spec.catalogue,
            own=self.standing,
            taken=frozenset(self.job.spec.catalogue),
            layout=Layout(world_size=self.facts.world_size, nodes=self.facts.nodes),
            local_world_size=self.facts.local_world_size,
            frozen=frozenset(),
        )

    def key_of(self, changes: Mapping[str, Value]) -> Key:
        """Return the places of these changes in the grid; idle knobs stand at the baseline's value."""
        values = self.values_of(changes)
        return tuple(place_of(places, values[knob]) for knob, places in self.grid.items())

    def changes_at(self, places: Mapping[str, int]) -> dict[str, Value]:
        """Return the sound strategy at these places of the grid: how methods that know no coupling rules are helped.

        Where a rule forbids the combination, knobs go back to the baseline from the last one on until it is sound.
        """
        wishes = {knob: self.grid[knob][place] for knob, place in places.items()}
        names = list(wishes)
        while True:
            if self.values_of(wishes) == self.standing:
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
            f"  best {Changes(best.changes).describe()}: {math.expm1(best.truth or 0.0):+.1%}"
        )


def rescale(result: BlockResult, times: Sequence[float], scale: float) -> BlockResult:
    """Return the result with these steps, which are scaled already, and its phases multiplied by `scale`."""
    scaled = tuple(times)
    phases = Phases(**{k: v and v * scale for k, v in asdict(result.phases).items()})
    return replace(
        result,
        steps=len(scaled),
        step_time_s=scaled,
        samples=result.samples_per_step * len(scaled),
        wall_s=sum(scaled),
        phases=phases,
        losses=result.losses[: len(scaled)],
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
