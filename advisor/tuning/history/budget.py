"""How the budget is divided: the verdict's share is reserved before the search gets any."""

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from advisor.protocol.measured.spending import measure_wall_s
from advisor.protocol.measured.trials import Purpose
from advisor.tuning.history.launches import believe_luck
from advisor.tuning.history.record import Record
from advisor.tuning.history.scores import score_trials
from advisor.tuning.measure.contrast import forecast_errors
from advisor.tuning.measure.pooling import Luck
from advisor.tuning.measure.sequential import ConfirmationPlan, plan_confirmation

SEGMENT_STEPS = 5
"""Steps of an arm before the next one takes over. Cutting one training's own steps into turns of five instead of forty
lowered the error of a comparison by a third on an idle machine and by more on a busy one (`benchmarks/race_grain.py`
measures it live); a swap costs well under a step."""
_MOST_RESERVED = 0.5
"""Largest share of a budget that the verdict reserves: without a search there is nothing to confirm."""
_SEARCH_SHARE = 0.85
"""Share of the time before the verdict in which strategies are searched; the rest is for taking needless knobs back."""
UNTIMED = 1.35
"""Seconds of a race for each timed second: first steps of segments, warm-up, profiled steps."""
_FEWEST_STEPS = 4
"""Timed steps of each arm in the shortest race of a verdict."""
_APART_ERROR = 0.03
"""Standard error of ln(throughput ratio) of two launches of one step each, where every strategy is a launch."""
FEWEST_PAIRS = 4
"""Pairs of launches that a verdict stands on where every strategy is a launch of its own."""


@dataclass(frozen=True)
class Reserve:
    """What the verdict needs, planned from the probe's noise."""

    plan: ConfirmationPlan
    launch_s: float
    """What one of its launches takes: the launch, the race with its untimed steps, the word with the server."""

    @property
    def total_s(self) -> float:
        """What the verdict takes in all, in seconds."""
        return self.plan.launches * self.launch_s


def plan_verdict(record: Record) -> Reserve:
    """Return how the verdict's budget is best spent: from the noise that was measured before it began.

    At most half of the budget while the search goes on; all that is left once it is over, or where there is none. Where
    every strategy is a launch of its own, a launch of the plan is a pair of launches, one of each strategy.
    """
    wanted = record.job.spec.measurement
    overhead_s = record.startup_s + record.trip_s
    began = _find_begin(record)
    if began is None:
        share = 1.0 if record.job.spec.verify else _MOST_RESERVED
        available_s = share * (record.budget_s - _spent_before(record))
    else:
        available_s = record.budget_s - _spent_until(record, began)
    if record.switches_at_launch:
        pair_s = 2.0 * (overhead_s + UNTIMED * wanted.block_s)
        launches = max(FEWEST_PAIRS, min(8, int(available_s / pair_s)))
        return Reserve(ConfirmationPlan(launches, 2.0 * wanted.block_s, 2.5 * _APART_ERROR), pair_s)
    known = [b.result for b in record.baseline_blocks if b.result and (began is None or b.issued_at < began)]
    if not known:
        return Reserve(ConfirmationPlan(2, 2.0 * wanted.block_s, 0.0), overhead_s + 2.0 * wanted.block_s)
    longest = max(known, key=lambda result: result.steps).step_time_s
    step_s = max(record.step_s, 1e-6)

    fixed_s = overhead_s + 2.0 * step_s * (wanted.warmup_steps + 4)
    lead = _find_lead(record) if began is not None else 0.0
    spec, luck = record.job.spec, believe_luck(record, {})
    plan = _plan(longest, fixed_s, available_s, spec.min_gain, lead, luck, spec.error)
    if plan.launches < 2:
        # Too little for two races that tell much: two short ones are tried all the same.
        race_s = max(available_s / 2.0 - fixed_s, 2.0 * _FEWEST_STEPS * step_s)
        plan = ConfirmationPlan(2, race_s, plan.smallest_gain)
    return Reserve(plan, fixed_s + plan.race_s)


@lru_cache(maxsize=64)
def _plan(
    step_time_s: tuple[float, ...],
    fixed_s: float,
    available_s: float,
    min_gain: float,
    lead: float,
    luck: Luck,
    alpha: float,
) -> ConfirmationPlan:
    """The plan for the noise of these steps; kept, because one decision asks for it several times."""
    error_of = forecast_errors(step_time_s, SEGMENT_STEPS)
    return plan_confirmation(
        lambda race_s: error_of(race_s / UNTIMED), fixed_s, available_s, min_gain, lead, luck, alpha
    )


def _find_lead(record: Record) -> float:
    """What the search's best strategy of an allowed rung surely brings, in ln(throughput); 0 where none does."""
    allowed = record.job.spec.allow.rank
    scores = score_trials(record).throughput
    leads = [s.mean - 2.0 * s.error for n, s in scores.items() if record.trial[n].effect.rank <= allowed]
    return max(0.0, *leads) if leads else 0.0


def _find_begin(record: Record) -> datetime | None:
    """When this budget's verdict began: at its first launch; None before."""
    continued = record.began_at()
    numbers = {t.number for t in record.trials_for(Purpose.CONFIRM)}
    for block in record.history.blocks:
        if block.trial_number in numbers and (continued is None or block.issued_at >= continued):
            return record.session[block.session_id].created_at
    return None


def _spent_before(record: Record) -> float:
    """Wall time that earlier budgets of the job spent, in seconds."""
    continued = record.began_at()
    return _spent_until(record, continued) if continued is not None else 0.0


def _spent_until(record: Record, moment: datetime) -> float:
    return measure_wall_s([s for s in record.sessions if s.created_at < moment], moment)


def limit_search_s(record: Record) -> float:
    """Return the wall time, from the job's start, at which the search has to stop, in seconds."""
    return record.budget_s - plan_verdict(record).total_s


def limit_new_s(record: Record) -> float:
    """Return the wall time at which the search takes up nothing new, in seconds: what is left trims its winner."""
    spent_s = _spent_before(record)
    return spent_s + _SEARCH_SHARE * max(0.0, limit_search_s(record) - spent_s)


def affords(record: Record, seconds: float) -> bool:
    """Whether the budget still holds something that takes so many seconds."""
    return seconds <= record.remaining_s
