"""What the search, which confirms nothing, saw of the strategies that the answer is not about."""

import math
from dataclasses import dataclass

from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Purpose
from advisor.tuning.history.launches import believe_luck
from advisor.tuning.history.record import Record
from advisor.tuning.history.scores import score_trials

_Z_975 = 1.96
"""97.5 % quantile of the normal distribution."""


@dataclass(frozen=True)
class Others:
    """What the search saw of the allowed strategies beside the one that the answer is about."""

    count: int
    best: float
    """ln(throughput / baseline's) of the one that looked fastest."""
    most: float
    """The same that none of them exceeds, with 97.5 % confidence: the largest of their upper bounds lies below the
    fastest one's truth only where that one's own bound does."""


def judge_others(record: Record, told: Changes) -> Others | None:
    """Return how fast the search saw the others; None where it measured none."""
    allowed, scores = record.job.spec.allow.rank, score_trials(record).throughput
    known = {
        trial.changes: scores[trial.number]
        for trial in record.trials_for(Purpose.SEARCH)
        if trial.number in scores and trial.effect.rank <= allowed and trial.changes != told
    }
    if not known:
        return None
    # The search sees most strategies in one launch, whose luck is not in the scores.
    luck = believe_luck(record, {}).spread
    most = max(score.mean + _Z_975 * math.hypot(score.error, luck) for score in known.values())
    return Others(len(known), max(score.mean for score in known.values()), most)
