"""Throughput against loss: every strategy that was measured, and which of them no other one beats in both."""

import math
from collections.abc import Sequence

from advisor.protocol.answers.advice import ParetoPoint
from advisor.protocol.gains import Quality, judge_quality
from advisor.protocol.kinds import Effect
from advisor.protocol.measured.trials import Purpose, Trial
from advisor.tuning.explain.cases import ends_by_time
from advisor.tuning.history.losses import contrast_losses, list_blocks
from advisor.tuning.history.record import Record
from advisor.tuning.history.scores import Scoreboard, score_trials
from advisor.tuning.stages.confirmation import confirm

_TOLD_APART = 2.0
"""Standard errors from which a loss change is told apart from none, and on each side of a ratio."""
_HUGE = 50.0


def build_pareto(record: Record) -> tuple[ParetoPoint, ...]:
    """Return a point for every strategy whose throughput is known, the baseline included, fastest first.

    The ratio is the confirmation's where it has one, else the search's. The loss change is the mean over all blocks
    of the strategy that a matched block of the baseline's mathematics was measured beside; 0 for exact strategies,
    which compute the same numbers. On the front is what no other point beats or equals in both and beats in one; a
    loss change within two standard errors counts as none there, and a point without one is never on it.
    """
    scores = score_trials(record)
    points: dict[object, ParetoPoint] = {}
    for trial in record.history.trials:
        if trial.purpose in {Purpose.BASELINE, Purpose.SEARCH, Purpose.CONFIRM} and (
            point := _place(record, scores, trial)
        ):
            known = points.get(trial.changes)
            if known is None or point.confirmed > known.confirmed:
                points[trial.changes] = point
    everything = list(points.values())
    marked = [p.model_copy(update={"on_front": _is_on_front(p, everything)}) for p in everything]
    return tuple(sorted(marked, key=lambda p: (-p.throughput_ratio, p.trial_number)))


def _place(record: Record, scores: Scoreboard, trial: Trial) -> ParetoPoint | None:
    ratio, confirmed = _find_ratio(record, scores, trial)
    if ratio is None or record.has_failed_anywhere(trial.changes):
        return None
    change, error = _find_loss(record, trial)
    return ParetoPoint(
        trial_number=trial.number,
        changes=trial.changes,
        effect=trial.effect,
        throughput_ratio=ratio,
        loss_change=change,
        loss_error=error,
        on_front=False,
        confirmed=confirmed,
    )


def _find_ratio(record: Record, scores: Scoreboard, trial: Trial) -> tuple[float | None, bool]:
    """Throughput over the baseline's, and whether it is the confirmation's."""
    if trial.purpose is Purpose.BASELINE:
        return (1.0, True) if record.baseline_blocks else (None, False)
    if trial.purpose is Purpose.CONFIRM:
        found = confirm(record, trial.changes, forced=ends_by_time(record)).look if trial.changes else None
        return (math.exp(found.mean), True) if found and _is_told(found.low, found.high) else (None, False)
    score = scores.throughput.get(trial.number)
    half = _TOLD_APART * score.error if score else 0.0
    is_told = score is not None and _is_told(score.mean - half, score.mean + half)
    return (math.exp(score.mean), False) if score and is_told else (None, False)


def _is_told(low: float, high: float) -> bool:
    """Whether a ratio with these ends, in logarithms, has a place; one that is surely slower has, wherever it lies."""
    low, high = (math.exp(max(-_HUGE, min(_HUGE, end))) for end in (low, high))
    quality = judge_quality(low, high)
    return quality is Quality.KNOWN or (quality is Quality.BOUNDED and high < 1.0)


def _find_loss(record: Record, trial: Trial) -> tuple[float | None, float | None]:
    if trial.effect is Effect.EXACT:
        return 0.0, None
    contrast = contrast_losses(record, list_blocks(record, trial.changes))
    return (contrast.difference, contrast.error) if contrast else (None, None)


def _is_on_front(point: ParetoPoint, others: Sequence[ParetoPoint]) -> bool:
    mine = told_loss(point)
    if mine is None:
        return False
    for other in others:
        theirs = told_loss(other)
        if theirs is None or other is point:
            continue
        as_good = theirs <= mine and other.throughput_ratio >= point.throughput_ratio
        if as_good and (theirs < mine or other.throughput_ratio > point.throughput_ratio):
            return False
    return True


def told_loss(point: ParetoPoint) -> float | None:
    """The loss change as far as it can be told apart from none."""
    change, error = point.loss_change, point.loss_error or 0.0
    if change is None:
        return None
    return change if abs(change) > _TOLD_APART * error else 0.0
