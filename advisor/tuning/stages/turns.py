"""The next race: who takes part, in which stage and why now, and the rules it is run by."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from advisor.protocol.asked.jobs import Stage
from advisor.protocol.kinds import Allow
from advisor.protocol.knobs.changes import period_of
from advisor.protocol.measured.results import RaceRules
from advisor.protocol.measured.trials import Block
from advisor.protocol.training.workload import WorkloadKind
from advisor.tuning.decisions import BASELINE, Candidate, Over, Race
from advisor.tuning.history.budget import SEGMENT_STEPS, UNTIMED
from advisor.tuning.history.comparisons import log_rate
from advisor.tuning.history.record import Record

PROFILE_STEPS = 3
"""Steps of each arm after the timed ones in which DDP logs its own communication."""
_PROBE_STEPS = 10
"""Fewest timed steps of the probe: a training of slow steps is not to spend its budget on looking."""
_GIVE_UP_RATIO = 1.3
"""An arm surely this many times slower than the fastest (of its race; alone in a launch, of all so far) is given up: it
can neither win nor teach much more."""
_KNOWN = 0.005
"""Standard error of ln(throughput ratio) from which more steps tell the search next to nothing more."""
_KNOWN_ALONE = 0.02
"""The same for a strategy alone in a launch of its own: launches differ by as much whatever one of them measures."""
_LEAST_STEPS = 4
"""Fewest timed steps of an arm whatever the time: their spread shows how little is known."""
_MOST_OF_STAGE = 0.25
"""Largest share of a stage's time that one race may plan to take."""
_EXTRA_STEPS = 5
"""Untimed steps of an arm besides its warm-up: entering, settling, profiling."""
LONG_TURN = 60
"""Steps of the turns that tell of the others, once in a verdict, whether they are too short: what a script reads ahead
is mostly used up within."""
_SHORT_STEPS = 50
"""Timed steps of an arm in short turns beside the long one."""
_LOOKING = 1.5
"""Times as long as without the long turn that a race with it may last: with fewer or slower steps it has none."""
LOSS_CHECK_STEPS = 32
"""Batches on which the guard compares losses, each one step; at most half of what is timed in a segment, so that
checking never takes the larger part of a race."""
_LEAST_CHECK_STEPS = 4
"""Fewest such batches; where a race has no time for them, training losses are compared."""
BIT_CHECK_STEPS = 12
"""Steps after which all bits are compared: another rounding of a gradient is in the weights after one or two."""
_CHECK_LEAD_IN = 2
"""Steps of a check that do not count: their batches were read before it."""
_CHECKED_SHARE = 1.6
"""Length of a race with loss checks over the same without."""
_PERIODS = 12
"""Periods that a strategy with a period is timed for at least in the verdict."""
_PERIODS_OF_SEARCH = 4
"""The same in a race that ranks strategies. All arms make the steps of the longest: with twelve periods of a local SGD
of four steps, each took four times its fewest steps."""


MOST_STEPS = 10_000
"""Most timed steps of an arm of the verdict: what two such arms report stays below the largest body of a request."""


@dataclass(frozen=True)
class Turn:
    """The next race, and whether it belongs in another launch than the live one."""

    race: Race
    fresh: bool = False

    @property
    def stage(self) -> Stage:
        """The stage it belongs to."""
        return self.race.stage

    @property
    def arms(self) -> tuple[Candidate, ...]:
        """Who takes part."""
        return self.race.arms


Next = Turn | Over
"""What a stage measures next, or why nothing."""


def probe_rules(record: Record) -> RaceRules:
    """Return the rules of the baseline's first block, which also measures links, gradients and devices."""
    wanted = record.job.spec.measurement
    has_runtime = record.job.spec.workload.kind is WorkloadKind.PYTORCH
    least = min(wanted.min_steps, _PROBE_STEPS)
    return RaceRules(
        warmup_steps=wanted.warmup_steps,
        segment_steps=SEGMENT_STEPS,
        min_steps=least,
        max_steps=max(least, wanted.max_steps),
        target_s=wanted.block_s,
        profile_steps=PROFILE_STEPS,
        calibrate=has_runtime,
        ceiling=has_runtime,
        weighs=_weighs(record),
        bit_check_steps=_count_bit_steps(record),
    )


def search_rules(record: Record, arms: Sequence[Candidate], stage_s: float) -> RaceRules:
    """Return the rules of a race that ranks strategies, in a stage that has `stage_s` seconds left."""
    wanted = record.job.spec.measurement
    timed = _timed_steps(record, arms, wanted.min_steps, _PERIODS_OF_SEARCH, stage_s)
    return RaceRules(
        warmup_steps=_whole(min(wanted.warmup_steps, timed), _period(arms)),
        segment_steps=_whole(SEGMENT_STEPS, _period(arms)),
        min_steps=timed,
        max_steps=max(timed, _whole(wanted.max_steps, _period(arms))),
        target_s=min(wanted.block_s, max(0.1, _MOST_OF_STAGE * stage_s / len(arms))),
        target_error=_find_enough(record, arms),
        give_up_ratio=_GIVE_UP_RATIO,
        least_samples_per_s=_find_least_rate(record, arms),
        profile_steps=PROFILE_STEPS,
        bit_check_steps=_count_bit_steps(record),
    )


def _find_enough(record: Record, arms: Sequence[Candidate]) -> float | None:
    """The standard error at which such a race ends; None where losses are compared, which takes all its steps."""
    if _is_inexact(record, arms):
        return None
    return _KNOWN_ALONE if len(arms) == 1 and record.required_cold(arms[0].changes) else _KNOWN


def _find_least_rate(record: Record, arms: Sequence[Candidate]) -> float | None:
    """Samples a second of each rank that are too few to win, for a strategy alone in a launch of its own.

    Those of the fastest strategy so far of an allowed rung, or of the baseline, over the ratio.
    """
    facts = record.job.facts
    if (
        len(arms) > 1
        or not record.required_cold(arms[0].changes)
        or not record.baseline_blocks
        or facts is None
    ):
        return None
    fastest = max(
        log_rate(b)
        for b in (record.baseline_blocks[-1], *record.usable)
        if record.is_allowed(record.trial[b.trial_number])
    )
    return math.exp(fastest) / facts.world_size / _GIVE_UP_RATIO


def verdict_rules(
    record: Record, arms: Sequence[Candidate], race_s: float, enough: float | None = None
) -> RaceRules:
    """Return the rules of a race of the verdict, which lasts `race_s` seconds whatever it shows.

    With `enough` it ends sooner, once the standard error of ln(throughput ratio) is no larger.
    """
    wanted = record.job.spec.measurement
    checks_losses = _is_inexact(record, arms) and len(arms) > 1
    race_s /= UNTIMED * (_CHECKED_SHARE if checks_losses else 1.0)
    timed = _timed_steps(record, arms, wanted.min_steps, _PERIODS, race_s / _MOST_OF_STAGE)
    checked = min(LOSS_CHECK_STEPS, timed // 4) if checks_losses else 0
    checked = checked if checked >= _LEAST_CHECK_STEPS else 0
    step_s = max(record.step_s, 1e-6)
    long = _choose_long_turn(record, arms, race_s / len(arms) / step_s)
    # In a launch of its own a strategy is to have used up what was read ahead before it.
    alone = min(LONG_TURN, timed // 4) if len(arms) == 1 else 0
    return RaceRules(
        warmup_steps=_whole(max(wanted.warmup_steps, alone), _period(arms)),
        segment_steps=_whole(max(SEGMENT_STEPS, 2 * checked), _period(arms)),
        long_turn_steps=long,
        loss_check_steps=checked,
        loss_check_offset=_count_checked_batches(record) if checked else 0,
        min_steps=timed,
        # A faster arm makes more steps in its share of the time; the time ends the race.
        max_steps=max(timed, _whole(min(MOST_STEPS, round(20.0 * race_s / step_s)), _period(arms))),
        target_s=max(race_s / len(arms), (long + _SHORT_STEPS) * step_s if long else 0.0),
        target_error=enough,
        profile_steps=PROFILE_STEPS,
        weighs=_weighs(record),
        bit_check_steps=_count_bit_steps(record),
    )


def _weighs(record: Record) -> bool:
    """Whether two programs are held against each other, of which one may do less."""
    return any(knob.is_command for knob in record.job.spec.workload.own)


def _count_bit_steps(record: Record) -> int:
    """Steps after which a job that allows nothing else holds every bit of the strategies against the script's own."""
    return BIT_CHECK_STEPS if record.job.spec.allow is Allow.BITWISE else 0


def _count_checked_batches(record: Record) -> int:
    """Batches that the loss checks of the races so far began with."""
    return sum({b.race: _count_check_steps(b.plan.rules) for b in record.history.blocks}.values())


def _choose_long_turn(record: Record, arms: Sequence[Candidate], steps: float) -> int:
    """Steps of the long turn: for the first race of a verdict, and not where every turn begins from a saved state.

    `steps` are those of an arm in the time that the race has.
    """
    if len(arms) < 2 or _is_inexact(record, arms) or _LOOKING * steps < LONG_TURN + _SHORT_STEPS:
        return 0
    trial = record.find_trial(arms[1].purpose, arms[1].changes)
    raced = trial is not None and any(block.trial_number == trial.number for block in record.history.blocks)
    return 0 if raced else LONG_TURN


def estimate_race_s(record: Record, arms: Sequence[Candidate], rules: RaceRules) -> float:
    """Return what a race takes at most, the word with the server included, in seconds."""
    step_s = max(record.step_s, 1e-6)
    timed_s = max(rules.target_s, rules.min_steps * step_s)
    untimed = rules.warmup_steps + rules.profile_steps + _EXTRA_STEPS + rules.min_steps / SEGMENT_STEPS
    untimed += _count_bit_check(rules)
    turns = 1.0 + 1.0 / SEGMENT_STEPS + _count_check_steps(rules) / rules.segment_steps
    return record.trip_s + len(arms) * (timed_s * turns + untimed * step_s)


def count_arms_that_fit(record: Record, rules: RaceRules) -> int:
    """Return how many arms one launch of the script has steps for; 1000 while no script was seen to end."""
    if record.capacity_steps is None:
        return 1000
    return int((record.capacity_steps - _EXTRA_STEPS) // _count_steps(rules))


def count_steps_needed(record: Record) -> int:
    """Return the fewest steps of a launch in which a strategy can be held against the baseline."""
    arms = (BASELINE, BASELINE)
    rules = search_rules(record, arms, max(record.remaining_s, 0.0))
    return int(len(arms) * (rules.warmup_steps + rules.min_steps * (1.0 + 1.0 / rules.segment_steps)))


def fits_behind(record: Record, blocks: Sequence[Block], arms: int, rules: RaceRules) -> bool:
    """Whether a launch whose blocks are these still has the steps for such a race before the script ends."""
    if record.capacity_steps is None or not blocks:
        return True
    used = sum(
        (
            b.result.steps
            + b.result.warmup_steps
            + b.result.excluded_steps
            + len(b.result.segments) * (1 + _count_check_steps(b.plan.rules))
            + _EXTRA_STEPS
        )
        for b in blocks
        if b.result is not None
    )
    return used + arms * _count_steps(rules) <= record.capacity_steps


def _count_steps(rules: RaceRules) -> float:
    """Steps that an arm takes at least, the untimed ones included."""
    checked = _count_check_steps(rules)
    timed = rules.min_steps * (1.0 + (1.0 + checked) / rules.segment_steps)
    untimed = rules.warmup_steps + rules.profile_steps + _EXTRA_STEPS + _count_bit_check(rules)
    return untimed + timed + checked


def _count_bit_check(rules: RaceRules) -> int:
    """Steps of the check of all bits, of one arm: as if there were two, one of which is checked twice."""
    return 3 * (rules.bit_check_steps + _CHECK_LEAD_IN) // 2 if rules.bit_check_steps else 0


def _count_check_steps(rules: RaceRules) -> int:
    """Steps of the loss check after one segment."""
    return rules.loss_check_steps + _CHECK_LEAD_IN if rules.loss_check_steps else 0


def _timed_steps(record: Record, arms: Sequence[Candidate], wanted: int, periods: int, stage_s: float) -> int:
    """Fewest timed steps of an arm: as wanted, or as many as leave the stage time for other races."""
    period = _period(arms)
    least = max(wanted, periods * period if period > 1 else 0)
    if record.step_s > 0:
        affordable = int(_MOST_OF_STAGE * stage_s / (len(arms) * record.step_s))
        least = max(_LEAST_STEPS, min(least, affordable))
    return _whole(least, period)


def _period(arms: Sequence[Candidate]) -> int:
    """The longest period among the arms: segments hold whole ones."""
    return max(period_of(arm.changes) for arm in arms)


def _is_inexact(record: Record, arms: Sequence[Candidate]) -> bool:
    return any(not record.is_exact(arm.changes) for arm in arms)


def _whole(steps: int, period: int) -> int:
    return -(-max(1, steps) // period) * period
