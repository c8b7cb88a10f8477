"""What the search sees of a trial: ln(throughput / baseline's) with a standard error that holds all that is not known.

A race against the baseline says it outright. A block that was measured without the baseline beside it, in a launch of
its own, is held against the nearest blocks of the baseline: the luck of a launch and the machine's drift are then part
of the error. All comparisons of one strategy are put together by their precision.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Block, Outcome, Purpose, Trial
from advisor.tuning.history.comparisons import compare_blocks, log_rate
from advisor.tuning.history.goodput import Efficiency, efficiency_of
from advisor.tuning.history.record import Record
from advisor.tuning.measure.slow_steps import settle

RACE_LUCK = 0.004
"""Standard deviation of ln(throughput ratio) between two races of one launch, beyond what their cycles show: how
memory came to lie, what else ran. From repeated races of one pair of bucket plans."""
LAUNCH_LUCK = 0.02
"""The same between blocks of two launches: the ratio of two launches of one strategy."""
_BLOCK_LUCK = 0.02
"""The same between two blocks of one launch that did not take turns."""
SURELY_SLOW_ERROR = 0.1
"""Least standard error of a strategy that was given up: a few steps place it, and its place hardly matters."""
_UNKNOWN_LAG = 0.02
"""What a convergence strategy of unknown efficiency is expected to lose, in ln(progress per sample), for each doubling
of its interval: the documents' table loses 0.3 to 1.5 points of accuracy up to k = 16."""


@dataclass(frozen=True)
class Score:
    """ln(throughput / baseline's) of a strategy, and its standard error."""

    mean: float
    error: float


@dataclass(frozen=True)
class Scoreboard:
    """Every search trial's score, worked out once for a record."""

    record: Record
    throughput: Mapping[int, Score]
    """Search trial's number -> its score in throughput."""
    progress: Mapping[int, Score]
    """The same times what a sample still teaches under it (goodput): what strategies are chosen by."""

    def of(self, trial: Trial) -> Score | None:
        """Return the trial's score in progress; None before it has one."""
        return self.progress.get(trial.number)


def score_trials(record: Record) -> Scoreboard:
    """Return the scores of all search trials that were measured and have not failed.

    A trial that was given up has one too: it is slow. Trials of one strategy share the score of all their blocks.
    """
    blocks: dict[Changes, list[Block]] = {}
    trials = [t for t in record.trials_for(Purpose.SEARCH) if _counts(record, t)]
    for trial in trials:
        blocks.setdefault(trial.changes, []).extend(record.usable_by_trial.get(trial.number, ()))
    known = {key: score for key, group in blocks.items() if (score := _combine(record, group)) is not None}
    throughput = {t.number: known[key] for t in trials if (key := t.changes) in known}
    progress = dict(throughput)
    for trial in trials:
        if trial.effect is Effect.CONVERGENCE and trial.number in throughput:
            progress[trial.number] = _discount(throughput[trial.number], trial, efficiency_of(record, trial))
    return Scoreboard(record, throughput, progress)


def _counts(record: Record, trial: Trial) -> bool:
    return not record.has_failed(trial) or trial.outcome is Outcome.PRUNED


def _combine(record: Record, blocks: Sequence[Block]) -> Score | None:
    found = [score for block in blocks if (score := _score_block(record, block)) is not None]
    if not found:
        return None
    weights = [1.0 / score.error**2 for score in found]
    total = math.fsum(weights)
    mean = math.fsum(weight * score.mean for weight, score in zip(weights, found, strict=True)) / total
    return Score(mean, 1.0 / math.sqrt(total))


def _score_block(record: Record, block: Block) -> Score | None:
    arms = record.races.get(block.race, ())
    beside = next((a for a in arms if a.trial_number == record.baseline_number), None)
    if beside is not None and beside.session_id == block.session_id:
        contrast = compare_blocks(block, beside)
        if contrast is None:
            return None
        mean, within = settle(contrast)
        error = math.hypot(within, RACE_LUCK)
        given_up = block.result is not None and block.result.given_up
        return Score(mean, max(error, SURELY_SLOW_ERROR) if given_up else error)
    return _score_apart(record, block)


def _score_apart(record: Record, block: Block) -> Score | None:
    """Against the nearest blocks of the baseline: those of the same launch, else one before and one after."""
    if block.summary is None:
        return None
    own = [b for b in record.baseline_blocks if b.session_id == block.session_id]
    others = own or list(record.baseline_blocks)
    others.sort(key=lambda b: abs((b.issued_at - block.issued_at).total_seconds()))
    near = others[:2]
    if not near:
        return None
    level = math.fsum(map(log_rate, near)) / len(near)
    squares = math.fsum(b.summary.log_step_time_se**2 for b in near if b.summary) / len(near) ** 2
    luck = _BLOCK_LUCK if own else LAUNCH_LUCK
    error = math.sqrt(squares + block.summary.log_step_time_se**2 + luck**2)
    return Score(log_rate(block) - level, error)


def _discount(score: Score, trial: Trial, efficiency: Efficiency | None) -> Score:
    """Throughput counts as much as a sample still teaches; what is not known is expected to cost something."""
    if efficiency is not None:
        error = math.hypot(score.error, efficiency.error / efficiency.value)
        return Score(score.mean + efficiency.log, error)
    lag = _UNKNOWN_LAG * math.log2(max(2.0, _interval_of(trial.changes)))
    return Score(score.mean - lag, math.hypot(score.error, lag))


def _interval_of(changes: Mapping[str, Value]) -> float:
    """The longest interval that the strategy sets."""
    intervals = [float(value) for name, value in changes.items() if name.endswith("k_steps")]
    return max(intervals, default=2.0)
