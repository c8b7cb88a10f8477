"""Weather: what makes equal steps of a simulated training differ, from the noise of one step to drift over hours."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from played_race import Heat
from surface_model import Cell, Key, Launch

from advisor.protocol.measured.results import BlockResult

_HOUR_S = 3600.0
STALL_S = 0.05
"""Seconds of a stall on average: one step of the baseline."""


@dataclass(frozen=True)
class Weather:
    """Kinds of noise; standard deviations are of ln(step time). What arms share cancels in a race, the rest not."""

    step: float = 0.03
    correlation: float = 0.4
    """From step to step, whatever strategy they are of."""
    stalls: float = 0.02
    """Share of the baseline's steps in which the machine stalls, for `STALL_S` seconds on average: strategies that take
    fewer seconds meet fewer stalls."""
    tail: float = 0.0
    """Stalls have a Pareto tail of this exponent in place of an exponential one; steps are Student's t with 3 degrees
    of freedom."""
    launch: float = 0.02
    """Luck of a launch, shared by its arms."""
    luck: float = 0.002
    """Luck of a strategy in a launch: no race inside the launch can see it."""
    arm: float = 0.001
    """Luck of a strategy in one race."""
    walk: float = 0.002
    """Random walk of the whole machine, per root of a second."""
    hours: float = 0.0
    """Drift that comes and goes over an hour."""
    bursts: float = 0.0
    """ln slowdown by another program that comes every 20 s on average and stays for 5 s on average."""
    pulse: float = 0.0
    """ln slowdown by another program that runs half of every `pulse_s` seconds."""
    pulse_s: float = 1.6
    carry: float = 0.0
    """Part of the first timed step after a swap that still runs like the arm before; halved with each further step."""
    swap: float = 0.0
    """ln slowdown of the first timed step after a swap; halved with each further step."""
    restless: float = 1.0
    """How many times noisier faster strategies are than the baseline: steps and stalls."""
    own: float = 0.0
    """Share of the steps of a faster strategy in which it stalls by itself."""
    bunch: int = 0
    """Every so many steps of the baseline its loader makes it wait for `STALL_S` seconds."""
    mood: float = 0.0
    """ln slowdown of the baseline in a launch that is in its slow mood: half of them."""

    @property
    def is_of_one_arm(self) -> bool:
        """Whether the clock shows another ratio than that of the injected gain."""
        return self.restless != 1.0 or bool(self.own or self.bunch or self.mood)


WEATHERS: Mapping[str, Weather] = {
    "calm": Weather(step=0.008, correlation=0.2, stalls=0.0, launch=0.01, luck=0.0, arm=0.0, walk=0.0005),
    "calm, launches differ by 0.5 %": Weather(
        step=0.008, correlation=0.2, stalls=0.0, luck=0.005, arm=0.0, walk=0.0005
    ),
    "calm, launches differ by 1 %": Weather(
        step=0.008, correlation=0.2, stalls=0.0, luck=0.01, arm=0.0, walk=0.0005
    ),
    "usual": Weather(),
    "usual, launches differ by 1 %": Weather(luck=0.01),
    "drift over hours": Weather(hours=0.1, walk=0.01),
    "bursts of seconds": Weather(bursts=0.3),
    "a pulse of a few cycles": Weather(pulse=0.15),
    "carry-over after a swap": Weather(carry=0.3, swap=0.1),
    "faster is noisier": Weather(restless=2.5),
    "heavy tails": Weather(stalls=0.04, tail=1.5),
    "usual, launches differ by 2 %": Weather(luck=0.02),
    "usual, launches differ by 3 %": Weather(luck=0.03),
    "faster stalls now and then": Weather(stalls=0.0, own=0.02),
    "baseline's loader bunches": Weather(bunch=6),
    "baseline has two moods": Weather(mood=0.4, luck=0.005),
    "over-subscribed": Weather(step=0.12, correlation=0.6, stalls=0.1, bursts=0.5, walk=0.01, luck=0.005),
}
"""What the verdict has to bear. None but the second to fifth is what its statistics assume."""


class Sky:
    """The machine over time: what all that runs on it feels."""

    def __init__(self, weather: Weather, dice: random.Random) -> None:
        self.weather, self.dice = weather, dice
        self._now_s = dice.uniform(0.0, 10.0)
        self._walk = 0.0
        self._slow = dice.gauss(0.0, weather.hours)
        self._burst_until = -1.0
        self._next_burst = dice.expovariate(1 / 20.0)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        weather, dice = self.weather, self.dice
        self._now_s += seconds
        self._walk += dice.gauss(0.0, weather.walk) * math.sqrt(seconds)
        if weather.hours:
            share = min(1.0, seconds / _HOUR_S)
            self._slow += -self._slow * share + dice.gauss(0.0, weather.hours) * math.sqrt(2.0 * share)
        if weather.bursts and self._now_s > self._next_burst:
            self._burst_until = self._now_s + dice.expovariate(1 / 5.0)
            self._next_burst = self._burst_until + dice.expovariate(1 / 20.0)

    @property
    def level(self) -> float:
        """ln(step time) now, over that of a quiet machine."""
        weather = self.weather
        level = self._walk + self._slow
        if weather.bursts and self._now_s < self._burst_until:
            level += weather.bursts
        if weather.pulse and self._now_s % weather.pulse_s < weather.pulse_s / 2.0:
            level += weather.pulse
        return level


class SimulatedLaunch(Launch):
    """A launch under a sky, of strategies whose true step time is known."""

    def __init__(
        self,
        sky: Sky,
        step_s: Callable[[Cell], float],
        describe: Callable[[Cell, Sequence[float], random.Random], BlockResult],
    ) -> None:
        self._sky, self._step_s, self._describe = sky, step_s, describe
        self._luck = sky.dice.gauss(0.0, sky.weather.launch)
        self._mood = sky.weather.mood * (sky.dice.random() < 0.5)
        self._lucks: dict[Key, float] = {}

    def race(self, cells: Sequence[Cell]) -> Heat:
        """Return a race of these strategies."""
        sky = self._sky
        centres = []
        for cell in cells:
            if cell.key not in self._lucks:
                self._lucks[cell.key] = sky.dice.gauss(0.0, sky.weather.luck)
            own = self._lucks[cell.key] + sky.dice.gauss(0.0, sky.weather.arm)
            mood = 0.0 if cell.changes else self._mood
            centres.append(math.log(self._step_s(cell)) + self._luck + own + mood)
        return _SimulatedHeat(
            sky, centres, [bool(cell.changes) for cell in cells], [self._is_faster(c) for c in cells]
        )

    def _is_faster(self, cell: Cell) -> bool:
        return self._step_s(cell) < self._step_s(replace(cell, changes={}))

    def describe(self, cell: Cell, times: Sequence[float]) -> BlockResult:
        """Return what the ranks would report of these steps."""
        return self._describe(cell, times, self._sky.dice)


class _SimulatedHeat(Heat):
    """Correlated steps with stalls, under a sky that moves on with every step."""

    def __init__(
        self, sky: Sky, centres: Sequence[float], changed: Sequence[bool], faster: Sequence[bool]
    ) -> None:
        self._sky, self._centres, self._changed, self._faster = sky, centres, changed, faster
        self._count = 0
        self._state = sky.dice.gauss(0.0, sky.weather.step)
        self._fresh = sky.weather.step * math.sqrt(1.0 - sky.weather.correlation**2)
        self._arm = self._before = 0

    def step(self, arm: int, since: int) -> float:
        """Return the next step's seconds."""
        sky, weather, dice = self._sky, self._sky.weather, self._sky.dice
        if arm != self._arm:
            self._before, self._arm = self._arm, arm
        noise = dice.gauss(0.0, self._fresh)
        if weather.tail:
            noise /= math.sqrt(dice.gammavariate(1.5, 2.0))
        self._state = weather.correlation * self._state + noise
        restless, centre = weather.restless if self._faster[arm] else 1.0, self._centres[arm]
        self._count += 1
        if (weather.carry or weather.swap) and since < 6 and self._before != arm:
            fading = 0.5 ** max(0, since - 1)
            centre += fading * (weather.carry * (self._centres[self._before] - centre) + weather.swap)
        time_s = math.exp(centre + restless * self._state + sky.level)
        if dice.random() < weather.stalls * restless * time_s / STALL_S:
            time_s += STALL_S * (
                dice.paretovariate(weather.tail) - 1.0 if weather.tail else dice.expovariate(1.0)
            )
        if self._faster[arm] and dice.random() < weather.own:
            time_s += 10.0 * STALL_S * dice.expovariate(1.0)
        if weather.bunch and not self._changed[arm] and self._count % weather.bunch == 0:
            time_s += STALL_S
        sky.advance(time_s)
        return time_s
