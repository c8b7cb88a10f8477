"""Rank 0's decisions about a race: who is given up, how long segments are, and when it is over.

It judges by its own steps: ranks that wait for each other take equally long ones.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Dict, List, Sequence

from ..observe.clock import Clock
from .arm import Arm
from .order import RaceRules
from .verdicts import cap_steps, estimate_error, estimate_own_error, is_hopeless, is_surely_slower

SWITCHING_SHARE = 0.1
"""The most of a segment that may be lost to switching to it."""
INEXACT_PERIODS = 12
"""Fewest periods in a segment that begins from the saved state."""
LOST_FACTOR = 2
"""Times the most steps, or the time, asked for after which a race ends although too few steps count."""


@dataclass(frozen=True)
class Course:
    """What all ranks follow until the next look; steps are the script's own, of which larger batches need fewer."""

    segment_steps: int
    """Timed steps of a segment, before it is rounded up to whole periods."""
    lead_in: int
    """Untimed steps after a switch."""
    until: int
    """Cycles after which rank 0 looks again."""
    steps: int
    """Timed steps that each arm is to have."""
    given_up: Sequence[int] = ()
    """Places of arms that are out from here on."""
    is_over: bool = False

    def count_turns(self, cycles: int, done: int) -> int:
        """Turns in one go of an arm that is alone, after so many cycles and steps: nothing is decided between them."""
        left = -(-(self.steps - done) // self.segment_steps)
        return min(self.until - cycles, left) if left > 0 else self.until - cycles


class Judge:
    """Every look has waited for the device."""

    def __init__(self, rules: RaceRules, arms: List[Arm], clock: Clock, restores: bool) -> None:
        self._rules, self._arms, self._clock = rules, arms, clock
        self._restores = restores
        """Whether every segment begins from the saved state."""

    @property
    def _racing(self) -> List[Arm]:
        return [arm for arm in self._arms if arm.races]

    def gives_up_new(self, arm: Arm) -> bool:
        """Whether the first steps of an arm are enough to give it up."""
        ratio = self._rules.give_up_ratio
        others = [other for other in self._racing if other is not arm and other.warm]
        fastest_s = min((other.estimate_step_s(self._clock) for other in others), default=0.0)
        return ratio is not None and is_hopeless(
            arm.read_warm_times(self._clock), fastest_s, ratio, arm.starts_slowly
        )

    def plan(self) -> Course:
        """The course to the first look, once all arms were entered."""
        racing = self._racing
        if not racing:
            return Course(1, 1, 0, 0, is_over=True)
        segment, steps = self._choose_segment(), self._choose_steps()
        alone_to_the_end = len(self._arms) == 1 and self._rules.target_error is None
        until = math.ceil(steps / segment) if alone_to_the_end else 1
        return Course(segment, max(arm.lead_in for arm in racing), until, steps)

    def look(self, cycles: int, lead_in: int) -> Course:
        """After so many complete cycles."""
        given_up = self._find_slow()
        for arm in given_up:
            arm.given_up = True
        segment, steps = self._choose_segment(), self._choose_steps()
        counts = [arm.count_kept() for arm in self._racing]
        fewest = min(counts, default=0)
        left = self._count_cycles_left(cycles, segment)
        until = cycles + min(max(1, cycles), max(1, left))
        if until % 2 and self._count_done() + (until + 1 - cycles) * segment <= self._most_steps:
            until += 1  # an order and its reverse
        is_over = (
            not counts
            or (fewest >= self._rules.min_steps and (left == 0 or self._is_known(cycles)))
            or self._spent_s() >= LOST_FACTOR * self._time_s()
            or cycles * segment > LOST_FACTOR * self._most_steps
        )
        return Course(segment, lead_in, until, steps, [arm.place for arm in given_up], is_over)

    def _time_s(self) -> float:
        """Seconds that the timed steps of all arms left should last together."""
        return self._rules.target_s * len(self._racing)

    def _spent_s(self) -> float:
        return sum(sum(arm.read_times(self._clock)) * arm.batches_per_step for arm in self._racing)

    @property
    def _most_batches(self) -> int:
        return max((arm.batches_per_step for arm in self._racing), default=1)

    @property
    def _most_steps(self) -> int:
        """The script's own steps that every arm stands for at most; larger batches too have their fewest steps."""
        return max(self._rules.max_steps, self._rules.min_steps * self._most_batches)

    def _count_done(self) -> int:
        """The script's own steps that every arm stands for by now."""
        return min((arm.count_kept() * arm.batches_per_step for arm in self._racing), default=0)

    def _count_cycles_left(self, cycles: int, segment: int) -> int:
        """Until the time is spent, within the fewest and the most steps; it counts as it passes, stalls included."""
        lacking = [(self._rules.min_steps - arm.count_kept()) * arm.batches_per_step for arm in self._racing]
        needed = math.ceil(max([0, *lacking]) / segment)
        most = math.ceil(max(0, self._most_steps - self._count_done()) / segment)
        if self._all_given_up and len(self._arms) > 1:
            return needed
        spent_s = self._spent_s()
        in_time = math.ceil(max(0.0, self._time_s() - spent_s) / max(spent_s / max(1, cycles), 1e-9))
        return max(needed, min(most, in_time))

    def _find_slow(self) -> List[Arm]:
        ratio, racing = self._rules.give_up_ratio, self._racing
        if ratio is None or len(racing) < 2:
            return []
        times = {arm.place: cap_steps(arm.read_times(self._clock)) for arm in racing}
        timed = [arm for arm in racing if times[arm.place]]
        if not timed:
            return []
        fastest = min(timed, key=lambda arm: statistics.fmean(times[arm.place]))
        return [
            arm
            for arm in timed
            if arm.place and is_surely_slower(times[arm.place], times[fastest.place], ratio)
        ]

    def _is_known(self, cycles: int) -> bool:
        target, racing = self._rules.target_error, self._racing
        if target is None:
            return False
        means = [arm.read_cycles(self._clock, cycles) for arm in racing]
        if len(means) == 1:
            return estimate_own_error(means[0]) <= target
        return all(estimate_error(arm, means[0]) <= target for arm in means[1:])

    def _choose_steps(self) -> int:
        """Enough steps for the target time on the average over the arms, within the limits, in whole periods."""
        rules, racing = self._rules, self._racing
        if not racing:
            return 0
        # The reference alone is left: it needs no more than its fewest steps.
        if len(racing) == 1 and len(self._arms) > 1 and racing[0].place == 0 and self._all_given_up:
            return self._round_up(rules.min_steps)
        step_s = statistics.fmean(arm.estimate_step_s(self._clock) for arm in racing)
        wanted = math.ceil(rules.target_s / max(step_s, 1e-6))
        return self._round_up(min(max(wanted, rules.min_steps * self._most_batches), self._most_steps))

    @property
    def _all_given_up(self) -> bool:
        return not any(arm.races for arm in self._arms[1:])

    def _round_up(self, steps: int) -> int:
        span = max(arm.period * arm.batches_per_step for arm in self._racing)
        return -(-steps // span) * span

    def _choose_segment(self) -> int:
        rules, racing = self._rules, self._racing
        if not racing:
            return 1
        steps = self._choose_steps()
        if len(self._arms) == 1:
            return self._round_up(min(rules.segment_steps, steps))
        lead_in = max(arm.lead_in for arm in racing)
        longest = max(1, steps // 2)
        fine = max(rules.segment_steps, 5 * (lead_in - 1), self._outlast_switching())
        slow = max(arm.least_segment for arm in racing)
        if self._restores:
            slow = max(slow, INEXACT_PERIODS * max(arm.period * arm.batches_per_step for arm in racing))
        if slow > longest:
            return self._round_up(min(steps, max(slow, fine)))
        return self._round_up(min(longest, max(slow, fine)))

    def _outlast_switching(self) -> int:
        """Steps after which switching to them has cost a tenth at most."""
        lengths: Dict[int, float] = {}
        for arm in self._racing:
            step_s = arm.estimate_step_s(self._clock)
            if step_s > 0:
                lengths[arm.place] = arm.switch_s * (1 / SWITCHING_SHARE - 1) / step_s
        return math.ceil(max(lengths.values(), default=0.0))
