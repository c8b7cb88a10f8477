"""What ranks agree on in a race: warm-up and lead-in, who is given up, how long segments are, and when it is over.

It judges by its own steps: ranks that wait for each other take equally long ones.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Sequence, Tuple

from ..observe.clock import Clock
from .arm import Arm
from .loss_check import Steps
from .order import RaceRules, choose_offset
from .parts import PEER_TIMEOUT_S, RankParts
from .verdicts import cap_steps, estimate_error, estimate_own_error, is_hopeless, is_moved, is_surely_slower

SWITCHING_SHARE = 0.1
"""The most of a segment that may be lost to switching to it."""
INEXACT_PERIODS = 12
"""Fewest periods in a segment that begins from the saved state."""
LONG_CYCLE = 4
"""The one with long turns: what drifts lies around it. It is judged after as many more."""
LOST_FACTOR = 2
"""Times the most steps, or the time, asked for after which a race ends although too few steps count."""


MOVED_SENTENCE = (
    "Its pace beside the others' is another in short turns than in a long one: what is read or computed ahead in one "
    "arm's turns is used up in another's. It needs launches of its own."
)


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
    workers: int = 0
    """Of a loader that hardly keeps up with one of the arms, or does not; 0 where it keeps up with all."""
    given_up: Sequence[int] = ()
    """Places of arms that are out from here on."""
    moved: Sequence[int] = ()
    """Places of arms that short turns say something else of than a long one."""
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
        limits = (self._rules.target_error, self._rules.least_samples_per_s)
        alone_to_the_end = len(self._arms) == 1 and limits == (None, None)
        until = math.ceil(steps / segment) if alone_to_the_end else 1
        return Course(segment, self._choose_lead_in(), until, steps, self._count_workers())

    def look(self, cycles: int, course: Course) -> Course:
        """After so many complete cycles of this course."""
        given_up = self._find_slow()
        for arm in given_up:
            arm.given_up = True
        moved = self._find_moved(cycles)
        for arm in moved:
            arm.relaunch_needed = MOVED_SENTENCE
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
        return replace(
            course,
            segment_steps=segment,
            until=until,
            steps=steps,
            given_up=[arm.place for arm in given_up],
            moved=[arm.place for arm in moved],
            is_over=is_over,
        )

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
        if len(self._arms) == 1:
            return [arm for arm in racing if self._lags(arm)]
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

    def _lags(self, arm: Arm) -> bool:
        """Whether it is surely slower than an arm that races alone has to be."""
        samples, least = arm.count_samples_of_step(), self._rules.least_samples_per_s
        if least is None or not samples:
            return False
        return is_surely_slower(cap_steps(arm.read_times(self._clock)), [samples / least] * 2, 1.0)

    def _find_moved(self, cycles: int) -> List[Arm]:
        """The arms that must not share a race with the first one."""
        racing = self._racing
        if not self._rules.long_turn_steps or self._restores or cycles < 2 * LONG_CYCLE or len(racing) < 2:
            return []
        short = {arm.place: arm.read_cycles(self._clock, cycles) for arm in racing}
        for means in short.values():
            means[LONG_CYCLE] = None
        late = {arm.place: arm.read_late(self._clock, LONG_CYCLE) for arm in racing}
        return [arm for arm in racing[1:] if is_moved(short[arm.place], short[0], late[arm.place], late[0])]

    def _is_known(self, cycles: int) -> bool:
        target, racing = self._rules.target_error, self._racing
        if target is None or (self._rules.long_turn_steps and cycles < 2 * LONG_CYCLE):
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
        lead_in = self._choose_lead_in()
        longest = max(1, steps // 2)
        fine = max(rules.segment_steps, 5 * (lead_in - 1), self._outlast_switching())
        slow = max(arm.least_segment for arm in racing)
        if self._restores:
            slow = max(slow, INEXACT_PERIODS * max(arm.period * arm.batches_per_step for arm in racing))
        if slow > longest:
            return self._round_up(min(steps, max(slow, fine)))
        return self._round_up(min(longest, max(slow, fine)))

    def _count_workers(self) -> int:
        """Of a loader that hardly keeps up with one of the arms, or does not; 0 where it keeps up with all."""
        racing = self._racing
        return max(arm.workers for arm in racing) if any(arm.is_strained for arm in racing) else 0

    def _choose_lead_in(self) -> int:
        """What one arm has left of a queue is gone after as many steps."""
        lead_in = max((arm.lead_in for arm in self._racing), default=1)
        return max(lead_in, *(1 + arm.asked for arm in self._racing)) if self._count_workers() else lead_in

    def _outlast_switching(self) -> int:
        """Steps after which switching to them has cost a tenth at most."""
        lengths: Dict[int, float] = {}
        for arm in self._racing:
            step_s = arm.estimate_step_s(self._clock)
            if step_s > 0:
                lengths[arm.place] = arm.switch_s * (1 / SWITCHING_SHARE - 1) / step_s
        return math.ceil(max(lengths.values(), default=0.0))


def agree_on_warm_up(parts: RankParts, rules: RaceRules) -> Tuple[int, bool]:
    """Untimed steps of the arm that was switched to, and whether the first of them say nothing of its pace."""
    levers = parts.levers
    steps = max(1, rules.warmup_steps, min(levers.least_warm_up, rules.max_steps))
    steps, slow = parts.agree_on_most([steps, int(levers.starts_slowly)], "how long to warm up")
    return steps, bool(slow)


def agree_on_arm(parts: RankParts, arm: Arm, arms: List[Arm]) -> None:
    """Strategies that came to the same thing in force, on every rank, are one arm; and whether its loader
    hardly keeps up with it on any of them."""
    arm.in_force = parts.levers.describe_in_force()
    alike = [other.place for other in arms[: arm.place] if other.in_force == arm.in_force]
    queue, own = parts.reading.find_queue(), [0, 0, 0]
    if queue is not None:
        own = [queue.count_asked(), queue.workers, int(queue.is_strained())]
    views = parts.exchange.gather([alike, own], "which arms are the same", PEER_TIMEOUT_S) or []
    common = set.intersection(*(set(same) for same, _ in views)) if views else set()
    most = [max(numbers) for numbers in zip(*(numbers for _, numbers in views))]
    place, most = parts.share([min(common, default=-1), most], "which arms are the same")
    arm.asked, arm.workers, arm.is_strained = most[0], most[1], bool(most[2])
    if place >= 0:
        arm.same_as = arms[place].order.block_id


def lead_in(parts: RankParts, arm: Arm, course: Course, switched: Optional[Tuple[str, int]]) -> Steps:
    """`switched` is the race's id and the cycle, where the arm was switched to.

    Workers that began together deliver together: chance decides where in their cycle the timed steps begin.
    """
    steps, queue = 1, None
    if switched is not None:
        steps = course.lead_in
        if course.workers:
            steps += choose_offset(*switched, arm.place, course.workers)
            queue = parts.reading.find_queue()
    if queue is not None:
        queue.lower(arm.queued)
    for left in range(steps, 0, -1):
        if left == 1 and queue is not None and queue is parts.reading.find_queue():
            queue.fill(arm.queued)
        yield


def note_queue(parts: RankParts, arm: Arm, course: Course) -> None:
    """The arm's turn is over."""
    queue = parts.reading.find_queue() if course.workers else None
    if queue is not None:
        arm.queued = queue.count_ready()
