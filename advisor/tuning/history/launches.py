"""What a job's launches and those of earlier jobs say of how much one launch differs from the next."""

from collections.abc import Mapping

from advisor.protocol.base import Value
from advisor.protocol.measured.trials import Purpose
from advisor.tuning.history.comparisons import list_comparisons
from advisor.tuning.history.record import Record
from advisor.tuning.history.scores import LAUNCH_LUCK
from advisor.tuning.measure.pooling import Luck, learn_luck
from advisor.tuning.measure.slow_steps import settle

MOST_FREEDOM = 10.0
"""Degrees of freedom that other strategies count for at most, of this job and of earlier ones: scripts differ."""
_APART = Luck(LAUNCH_LUCK, 2.0)
"""Two launches differ by their own luck, which one launch of both strategies takes off."""


def is_part(one: Mapping[str, Value], other: Mapping[str, Value]) -> bool:
    """Whether one of two sets of settings holds the other."""
    return one.items() <= other.items() or other.items() <= one.items()


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
        # What races beside a part of itself shares that one's luck.
        if trial.changes and not is_part(trial.changes, changes) and not record.required_cold(trial.changes)
    ]
    earlier = [launches.ratios for launches in record.history.earlier_launches]
    return learn_luck([*others, *earlier], MOST_FREEDOM)
