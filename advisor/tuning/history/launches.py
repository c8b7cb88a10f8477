"""What a job's launches and those of earlier jobs say of how much one launch differs from the next."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from advisor.protocol.base import Value
from advisor.protocol.measured.estimates import rate_of
from advisor.protocol.measured.trials import Block, Purpose
from advisor.tuning.history.comparisons import Comparison, list_comparisons
from advisor.tuning.history.record import Record
from advisor.tuning.history.scores import LAUNCH_LUCK
from advisor.tuning.measure.pooling import Luck, find_gap, learn_luck
from advisor.tuning.measure.slow_steps import settle

MOST_FREEDOM = 10.0
"""Degrees of freedom that other strategies count for at most, of this job and of earlier ones: scripts differ."""
_APART = Luck(LAUNCH_LUCK, 2.0)
"""Two launches differ by their own luck, which one launch of both strategies takes off."""


def believe_luck(record: Record, changes: Mapping[str, Value]) -> Luck:
    """Return what is believed of the luck of this strategy's launches before they are seen.

    What other strategies of the verdict showed in this job's launches, and the verdicts of earlier jobs on the same
    nodes in theirs; where each strategy needs a launch of its own, what is usual then.
    """
    if record.required_cold(changes):
        return _APART
    others = [
        [settle(c.contrast) for c in list_comparisons(record, Purpose.CONFIRM, trial.changes)]
        for trial in record.trials_for(Purpose.CONFIRM)
        if trial.changes and trial.changes != changes and not record.required_cold(trial.changes)
    ]
    earlier = [launches.ratios for launches in record.history.earlier_launches]
    return learn_luck([*others, *earlier], MOST_FREEDOM)


def list_rates(blocks: Sequence[Block]) -> Mapping[str, float]:
    """Return ln(samples per second) of each launch (session's id) in which these blocks were measured, in order."""
    rates: dict[str, list[float]] = {}
    for block in blocks:
        if (rate := rate_of(block)) > 0.0:
            rates.setdefault(block.session_id, []).append(math.log(rate))
    return {launch: fmean(group) for launch, group in rates.items()}


def find_mood_gap(record: Record) -> float | None:
    """Return the ln(rate) that parts the baseline's slow launches from its fast ones; None without moods."""
    return find_gap([*list_rates(record.baseline_blocks).values()])


def list_ratios(comparisons: Sequence[Comparison]) -> Mapping[str, float]:
    """Return the mean ln ratio of each launch."""
    ratios: dict[str, list[float]] = {}
    for comparison in comparisons:
        ratios.setdefault(comparison.launch, []).append(comparison.contrast.total)
    return {launch: fmean(group) for launch, group in ratios.items()}
