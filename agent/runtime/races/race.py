"""The course of one race on this rank: arms are entered, take turns, are profiled, and the strategy is put right again.

`advance` is called on every rank at every step boundary but those between two decisions (`_time`). The course is
written as a generator: what stands between two `yield`s happens at one boundary, and each `yield` is one step of the
script.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, Dict, List, Optional

from ..calibrating.calibration import CalibrationSteps
from ..levers.lever import Evidence, RelaunchNeeded
from ..link import beat
from ..link.measured import BlockResult
from ..observe.memory import reset_peak
from ..observe.recorder import StepMarks, read_losses
from .agreement import Bits, sum_bits
from .arm import Arm
from .bit_check import check_bits
from .close_look import CloseLook
from .further_steps import begin_calibration, can_calibrate, measure_rates, watch_steps
from .judge import (
    LONG_CYCLE,
    MOVED_SENTENCE,
    Course,
    Judge,
    agree_on_arm,
    agree_on_warm_up,
    lead_in,
    note_queue,
)
from .loss_check import LossCheck, Steps, explain_no_check
from .order import RaceOrder, order_turns
from .parts import PEER_TIMEOUT_S, RankParts
from .rank_arm import RankRace, gather_race
from .results import merge_race, read_peak
from .snapshot import TrainingSnapshot
from .weighing import Weighing

USUAL_SAMPLE_RATE = 100
"""DDP times every hundredth iteration unless told otherwise (kDDPRuntimeLoggingSampleRate)."""
JUDGED_STEPS = (1, 2, 3)
"""Steps of a new arm after which the ranks ask whether it is hopeless."""


class Race:
    """The same on every rank; `results` are rank 0's once it is over."""

    def __init__(self, order: RaceOrder, parts: RankParts) -> None:
        self._order, self._parts = order, parts
        self.arms = [Arm(arm, place) for place, arm in enumerate(order.arms)]
        training = parts.gather_training()
        self._snapshot: Optional[TrainingSnapshot] = None
        if any(parts.levers.needs_snapshot(arm.overrides) for arm in order.arms):
            self._snapshot = TrainingSnapshot(training)
        self._loss_check: Optional[LossCheck] = None
        checks = self._snapshot is not None and len(order.arms) > 1 and order.rules.loss_check_steps
        if checks and not explain_no_check(training):
            self._loss_check = LossCheck(parts, order.rules.loss_check_steps)
            parts.reading.put_off(order.rules.loss_check_offset)
        self._look = CloseLook(parts, order.rules.looks_closely)
        self._weighing = Weighing(parts) if order.rules.weighs and len(order.arms) == 1 else None
        self._judge = Judge(order.rules, self.arms, parts.clock, self._snapshot is not None)
        self._in_force: Optional[Arm] = None
        self._needs_lead_in = True
        """The device idled, or a strategy was switched: the next step says nothing."""
        self._was_switched = False
        self._is_touched = False
        """Parameters are no longer what was saved."""
        self._cycles = 0
        self._under_way: List[StepMarks] = []
        """Steps of turns that are not over."""
        self.calibration: Optional[CalibrationSteps] = None
        self.disturbed = False
        """More was done at this boundary than booking a step."""
        self.results: Dict[str, BlockResult] = {}
        self._bits_before: List[Bits] = []
        self._course = self._run()

    @property
    def race_id(self) -> str:
        return self._order.race_id

    @property
    def least_steps(self) -> int:
        return self._order.rules.min_steps

    def advance(self, step: Optional[StepMarks]) -> bool:
        """Takes the step that ended at this boundary (None at the first one); whether the race is over."""
        self.disturbed = step is None
        try:
            self._course.send(step)
        except StopIteration:
            return True
        return False

    def conclude_early(self) -> bool:
        """The script ended inside: whether what complete cycles hold is enough. On all ranks alike."""
        self._course.close()
        if len(self.arms) > 1:
            for arm in self.arms:
                arm.forget_after(self._cycles)
        racing = [arm for arm in self.arms if arm.races]
        least = self.least_steps
        if not racing or any(len(arm.timed) < least for arm in racing):
            return False
        self._conclude(script_ended=True)
        measured = [self.results.get(arm.order.block_id) for arm in racing]
        return all(result is not None and result.steps >= least for result in measured)

    @property
    def steps_done(self) -> int:
        """Timed ones, those of turns that are under way included."""
        return sum(len(arm.timed) for arm in self.arms) + len(self._under_way)

    # The course.

    def _run(self) -> Steps:
        self._prepare()
        if self._weighing is not None:
            self._weighing.look_at_batches(True)
        for arm in self.arms:
            yield from self._enter(arm)
        if self._weighing is not None:
            self._weighing.look_at_batches(False)
        if steps := self._order.rules.bit_check_steps:
            yield from check_bits(self._parts, self.arms, self._switch_to, steps, self._snapshot)
            self.disturbed = self._needs_lead_in = True
        course = self._agree(self._judge.plan)
        self._parts.enter(beat.TIMING)
        self._parts.recorder.start()
        self._look.begin()
        self._ask_ddp(self._parts.asks_cheaply)
        if self._loss_check is not None and not course.is_over and self._switch_to(self.arms[0]):
            yield from self._check_losses(self._loss_check.at_start)
        alone = self.arms[0] if len(self.arms) == 1 else None
        while not course.is_over:
            while self._cycles < course.until:
                turns = course.count_turns(self._cycles, alone.count_batches()) if alone else 1
                for arm in order_turns(self.race_id, self._cycles, [arm for arm in self.arms if arm.races]):
                    yield from self._run_segment(arm, course, turns)
                self._cycles += turns
            if alone and alone.timed and alone.count_batches() >= course.steps:
                break
            course = self._agree(lambda course=course: self._judge.look(self._cycles, course))
        self._look.pause()
        for arm in reversed([arm for arm in self.arms if arm.races]):
            if arm.evidence is None:
                self._collect_evidence(arm)
            yield from self._profile(arm, course)
        yield from self._look_further()
        self._conclude(script_ended=False)

    def _prepare(self) -> None:
        """All ranks agree whether reducers may live side by side, and rank 0 learns whether parameters are equal."""
        parts, levers = self._parts, self._parts.levers
        replicas = parts.list_replicas()
        fits = levers.reduction.explain_no_live(replicas) is None and parts.has_room(len(self.arms) - 1)
        views = parts.exchange.gather([fits, sum_bits(replicas)], "the state before a race", PEER_TIMEOUT_S)
        keeps_live = False
        if views is not None:
            self._bits_before = [bits for _, bits in views]
            keeps_live = len(self.arms) > 1 and not parts.drifted and all(found for found, _ in views)
        levers.reduction.is_compared = len(self.arms) > 1
        levers.begin_race([arm.order.overrides for arm in self.arms], holds=self._loss_check is not None)
        levers.reduction.keeps_live = bool(parts.share(keeps_live, "whether reducers may live side by side"))

    def _enter(self, arm: Arm) -> Steps:
        parts, levers = self._parts, self._parts.levers
        reset_peak(parts.device)
        self._switch_to(arm)
        arm.relaunch_needed = parts.agree_on_refusal(arm.relaunch_needed, "whether all could switch")
        if arm.relaunch_needed:
            return
        arm.period, arm.lead_in, arm.least_segment = levers.period, levers.lead_in, levers.least_segment
        arm.batches_per_step = levers.batches_per_step
        arm.warmup_steps, arm.starts_slowly = agree_on_warm_up(parts, self._order.rules)
        arm.averages_at_boundaries = levers.averages_at_boundaries
        parts.reading.watch_queue()
        parts.enter(beat.COMPILING if levers.compiles else beat.WARMING_UP)
        for count in range(1, arm.warmup_steps + 1):
            arm.take_warm((yield))
            if count == 1:
                levers.begin_timing()
            if self._is_judged(arm, count) and self._agree_to_give_up(arm):
                return
        self._was_switched = False
        if len(self.arms) > 1:
            arm.peak_bytes = read_peak(self._parts)
            agree_on_arm(parts, arm, self.arms)
            self.disturbed = True
            if arm.same_as:
                self._collect_evidence(arm)

    def _is_judged(self, arm: Arm, count: int) -> bool:
        if self._order.rules.give_up_ratio is None or arm.place == 0:
            return False
        return count == arm.warmup_steps or (count in JUDGED_STEPS and not arm.starts_slowly)

    def _agree_to_give_up(self, arm: Arm) -> bool:
        parts = self._parts
        parts.clock.settle()
        found = parts.rank == 0 and self._judge.gives_up_new(arm)
        arm.given_up = bool(parts.share(found, "whether a new arm is given up"))
        self.disturbed = True
        if arm.given_up:
            arm.count_warm_steps()
            # So few steps cannot prove anything.
            self._collect_evidence(arm).not_consumed.clear()
        return arm.given_up

    def _run_segment(self, arm: Arm, course: Course, turns: int) -> Steps:
        parts, levers = self._parts, self._parts.levers
        if not self._switch_to(arm):
            return
        if self._needs_lead_in:
            parts.enter(beat.TIMING)
            yield from lead_in(
                parts, arm, course, (self.race_id, self._cycles) if self._was_switched else None
            )
            levers.begin_timing()
            self._needs_lead_in = self._was_switched = False
            self.disturbed = True
        left, length = course.steps - arm.count_batches(), turns * course.segment_steps
        if self._cycles == LONG_CYCLE and self._snapshot is None:
            length = max(length, self._order.rules.long_turn_steps)
        count = arm.count_whole(min(length, left) if left > 0 else length)
        yield from self._time(arm, count, arm.count_whole(course.segment_steps) if turns > 1 else count)
        note_queue(parts, arm, course)
        if len(self.arms) > 1 and arm.evidence is None:
            self._collect_evidence(arm)
        if self._loss_check is not None:
            arm.loss_checks.append([])
            yield from self._check_losses(arm.loss_checks[-1])

    def _time(self, arm: Arm, count: int, turn: int) -> Steps:
        """Turns of `turn` steps. Where no lever works in steps the recorder keeps all but the last one by itself.

        What a script that ends inside has left is booked too.
        """
        kept = self._under_way = []
        alone = 0 if self._parts.levers.work_in_steps else count - 1
        self._parts.recorder.keep_steps(alone, kept)
        try:
            for _ in range(count - alone):
                step = yield
                if step is not None:
                    kept.append(step)
        finally:
            self._under_way = []
            arm.book(kept, self._cycles, turn)

    def _check_losses(self, found: List[StepMarks]) -> Steps:
        assert self._loss_check is not None
        self.disturbed = self._needs_lead_in = True
        self._in_force = None
        yield from self._loss_check.run(found)

    def _profile(self, arm: Arm, course: Course) -> Steps:
        """Asks DDP in steps that do not count, where asking makes the host wait for the device.

        Local SGD reduces nothing in most steps: its communication is the averaging, which was timed already.
        """
        parts, rules = self._parts, self._order.rules
        if not parts.list_replicas() or parts.world_size == 1 or rules.profile_steps < 1:
            return
        asked = parts.asks_cheaply and any(step.exposed_s is not None for step in arm.timed)
        if parts.share(asked, "whether an arm was profiled"):
            return
        if not self._switch_to(arm) or parts.levers.replaces_reduction:
            return
        parts.enter(beat.PROFILING)
        self._ask_ddp(True)
        for _ in range(course.lead_in if self._was_switched else 0):
            yield
        self._was_switched = False
        for _ in range(max(rules.profile_steps, arm.period) + 1):
            step = yield
            if step is not None:
                arm.profiled.append(step)
        self._ask_ddp(parts.asks_cheaply)
        self.disturbed = True

    def _ask_ddp(self, asks: bool) -> None:
        """Whether DDP times each of its iterations, and is asked for it."""
        asks = asks and self._parts.world_size > 1
        self._parts.recorder.asks_ddp = asks
        self._parts.recorder.forget_reductions()
        self._parts.rate_logging(1 if asks else USUAL_SAMPLE_RATE)

    def _look_further(self) -> Steps:
        """Under the first arm: what a step does is weighed; links, gradients and devices are measured."""
        parts, first = self._parts, self.arms[0]
        if self._weighing is not None and first.races:
            self.disturbed = True
            self._weighing.begin()
            yield from watch_steps(parts, self._weighing)
            first.work = self._weighing.read()
        if first.races and can_calibrate(parts, self._order.rules):
            self._switch_to(first)
            self.disturbed = True
            self.calibration = begin_calibration(parts, self._order.rules)
            yield from watch_steps(parts, self.calibration)
            measure_rates(parts, self.calibration)

    # What happens at one boundary.

    def _switch_to(self, arm: Arm) -> bool:
        """Whether the arm is in force now; where segments begin from the saved state, that is put back first."""
        if self._in_force is arm and (self._snapshot is None or len(self.arms) == 1):
            return True
        parts, start_s = self._parts, time.perf_counter()
        training = parts.gather_training()
        try:
            if self._snapshot is not None and self._is_touched:
                parts.levers.end_segment(training)
                self._snapshot.restore()
            self._is_touched = True
            parts.levers.switch(arm.order.overrides, training)
        except RelaunchNeeded as needed:
            arm.relaunch_needed = str(needed)
            self._in_force = None
            return False
        parts.recorder.keeps_loss = parts.levers.needs_loss
        if parts.recorder.asks_ddp:
            self._ask_ddp(True)
        arm.switches_s.append(time.perf_counter() - start_s)
        self._in_force = arm
        self.disturbed = self._needs_lead_in = self._was_switched = True
        return True

    def _agree(self, decide: Any) -> Course:
        """Rank 0's course on every rank."""
        parts = self._parts
        parts.clock.settle()
        own = asdict(decide()) if parts.rank == 0 else None
        course = Course(**parts.share(own, "the course of a race"))
        for place in course.given_up:
            self.arms[place].given_up = True
        for place in course.moved:
            self.arms[place].relaunch_needed = MOVED_SENTENCE
        self.disturbed = self._needs_lead_in = True
        return course

    def _collect_evidence(self, arm: Arm) -> Evidence:
        if len(self.arms) == 1:
            arm.peak_bytes = read_peak(self._parts)
        replicas, levers = self._parts.list_replicas(), self._parts.levers
        arm.bucket_bytes = levers.reduction.list_bucket_bytes(replicas)
        arm.evidence = evidence = levers.prove(self._parts.backend, replicas)
        self.disturbed = self._needs_lead_in = True
        return evidence

    def _conclude(self, script_ended: bool) -> None:
        """Puts the model right and brings all ranks' series together."""
        parts = self._parts
        parts.recorder.recording = False
        self._ask_ddp(False)
        if self._loss_check is not None:
            self._loss_check.end()
        parts.reading.forget_replay()
        parts.clock.settle()
        if len(self.arms) == 1 and self.arms[0].evidence is None and self.arms[0].timed:
            self._collect_evidence(self.arms[0])
        nested, replicas = parts.recorder.has_nested, bool(parts.list_replicas())
        if self.calibration is not None and self.calibration.is_complete:
            self.arms[0].calibration = self.calibration.read()
        arms = [arm.measure(parts.clock, replicas, nested) for arm in self.arms]
        at_start = self._loss_check.at_start if self._loss_check is not None else []
        losses = read_losses([step.loss for step in at_start])
        if not script_ended:
            self._put_right()
            parts.levers.reduction.drop_spares()
        look = self._look.end(self.arms[0].timed)
        own = RankRace(arms, sum_bits(parts.list_replicas()), losses, look)
        ranks = gather_race(parts.exchange, own, 15.0 if script_ended else PEER_TIMEOUT_S)
        if ranks is not None:
            blocks = [arm.order.block_id for arm in self.arms]
            self.results, parts.drifted = merge_race(
                ranks, blocks, self._bits_before, script_ended, parts.drifted
            )

    def _put_right(self) -> None:
        """As before the race where something was saved; else under the first arm, that no spare reducer is in force."""
        racing = [arm for arm in self.arms if arm.races]
        if self._snapshot is None and len(self.arms) > 1 and racing:
            self._switch_to(racing[0])
        self._parts.levers.end_segment(self._parts.gather_training())
        if self._snapshot is not None:
            self._snapshot.restore()
            self._snapshot = None
