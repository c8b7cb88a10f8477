"""A race without training: arms take turns by the runtime's own rules, and a heat says how long each step takes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

from sessions import ROOT  # noqa: F401  (makes the packages importable)

from advisor.protocol.measured.results import RaceRules
from agent.runtime.races.judge import LONG_CYCLE, Judge
from agent.runtime.races.order import order_turns
from agent.runtime.races.verdicts import cap_steps

_UNLIMITED = 10**9


class Heat(ABC):
    """One race on a surface: what its arms share, and how long each of their steps takes."""

    longest: int = _UNLIMITED
    """Timed steps of an arm that may be asked for: a replay does not make a recording more precise than it is."""

    @abstractmethod
    def step(self, arm: int, since: int) -> float:
        """Return the seconds of the arm's next step, `since` steps after it took over (0: the untimed first one)."""


@dataclass
class PlayedArm:
    """What the runtime's judge asks of an arm, and what was measured of it."""

    place: int
    period: int = 1
    batches_per_step: int = 1
    warm: list[float] = field(default_factory=list)
    """Untimed steps before its first segment, in seconds."""
    times: list[float] = field(default_factory=list)
    """Timed steps, in seconds."""
    cycles: list[int] = field(default_factory=list)
    """The cycle of each timed step."""
    given_up: bool = False
    lead_in: int = 1
    least_segment: int = 1
    switch_s: float = 0.0
    starts_slowly: bool = False
    asked: int = 0
    workers: int = 0
    is_strained: bool = False
    relaunch_needed: str = ""

    @property
    def races(self) -> bool:
        """Whether it still takes turns."""
        return not (self.given_up or self.relaunch_needed)

    @property
    def segments(self) -> tuple[int, ...]:
        """Timed steps in each cycle."""
        counts = [0] * (max(self.cycles, default=-1) + 1)
        for cycle in self.cycles:
            counts[cycle] += 1
        return tuple(counts)

    def read_times(self, _clock: Any) -> list[float]:
        """The timed steps."""
        return self.times

    def read_warm_times(self, _clock: Any) -> list[float]:
        """The steps before them."""
        return self.warm

    def read_late(self, _clock: Any, cycle: int) -> list[float]:
        """The later half of one cycle's steps."""
        times = [time_s for time_s, where in zip(self.times, self.cycles, strict=True) if where == cycle]
        return times[len(times) // 2 :]

    def count_samples_of_step(self) -> float:
        """Unknown: no arm that races alone is held against the baseline's samples per second."""
        return 0.0

    def count_kept(self) -> int:
        """How many timed steps there are."""
        return len(self.times)

    def estimate_step_s(self, _clock: Any) -> float:
        """A typical step."""
        if len(self.times) > 2:
            return median(self.times)
        return median(self.warm[len(self.warm) // 2 :]) if self.warm else 0.0

    def read_cycles(self, _clock: Any, cycles: int) -> list[float | None]:
        """Mean capped step of each cycle."""
        sums: dict[int, list[float]] = {}
        for cycle, time_s in zip(self.cycles, cap_steps(self.times), strict=True):
            sums.setdefault(cycle, []).append(time_s)
        return [fmean(sums[cycle]) if cycle in sums else None for cycle in range(cycles)]


@dataclass
class PlayedRace:
    """How a race went."""

    arms: list[PlayedArm]
    seconds: float
    """All steps: warm-up, first steps of segments, timed and profiled ones."""


def play_race(
    race_id: str, periods: Sequence[int], heat: Heat, rules: RaceRules, *, restores: bool = False
) -> PlayedRace:
    """Play a race of arms with these periods to its end. `restores`: segments begin from the saved state."""
    rules = limit_rules(rules, heat.longest)
    arms = [PlayedArm(place, period) for place, period in enumerate(periods)]
    judge = Judge(rules, arms, None, restores)  # type: ignore[arg-type]
    spent = _Spent(heat.step)
    for arm in arms:
        for count in range(1, rules.warmup_steps + 1):
            arm.warm.append(spent.step(arm.place, count))
            if arm.place and (count in (1, 2, 3) or count == rules.warmup_steps) and judge.gives_up_new(arm):
                # The runtime reports such an arm by the steps it has.
                arm.given_up, arm.times, arm.cycles = True, arm.warm[1:] or arm.warm, [0] * max(1, count - 1)
                break
    course, cycles, in_force = judge.plan(), 0, -1
    while not course.is_over:
        while cycles < course.until:
            for arm in order_turns(race_id, cycles, [arm for arm in arms if arm.races]):
                since = 1
                if arm.place != in_force:
                    spent.step(arm.place, 0)
                    in_force = arm.place
                left = course.steps - len(arm.times)
                length = course.segment_steps
                if cycles == LONG_CYCLE and not restores:
                    length = max(length, rules.long_turn_steps)
                length = min(length, left) if left > 0 else length
                for _ in range(-(-length // arm.period) * arm.period):
                    arm.times.append(spent.step(arm.place, since))
                    arm.cycles.append(cycles)
                    since += 1
            cycles += 1
        if len(arms) == 1 and len(arms[0].times) >= course.steps:
            break
        course = judge.look(cycles, course)
    for arm in arms:
        if arm.races:
            for since in range(rules.profile_steps):
                spent.step(arm.place, since)
    return PlayedRace(arms, spent.seconds)


def limit_rules(rules: RaceRules, longest: int) -> RaceRules:
    """Return the rules with no more timed steps than may be asked for."""
    if longest >= rules.max_steps:
        return rules
    return replace(rules, min_steps=max(1, min(rules.min_steps, longest)), max_steps=max(1, longest))


@dataclass
class _Spent:
    """Adds up what steps take."""

    source: Callable[[int, int], float]
    seconds: float = 0.0

    def step(self, arm: int, since: int) -> float:
        seconds = self.source(arm, since)
        self.seconds += seconds
        return seconds
