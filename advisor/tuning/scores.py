"""What the search sees of a trial: ln(throughput / baseline's) with a standard error that holds all that is not known.

The model of a block's y = ln(samples per second):

    y = level + gain of its strategy + luck of its gang + luck of its launch + drift of its gang + luck of the block

The baseline's gain is 0. Every luck is normal with mean 0, drift is a random walk in time, and a block's own luck has
the variance of its batch medians besides one that no longer block would remove. A gain is estimated by generalised
least squares from the trial's blocks and all the baseline's blocks, the anchors: the best linear unbiased estimate.
Near anchors of the same launch count most; where a launch has none, other launches' anchors serve, and the luck of
launches is part of the error. Only the baseline is measured again and again, so that the variances come from it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING

from advisor.protocol.trials import Block, Outcome, Purpose, Trial
from advisor.tuning.composition import key_of

if TYPE_CHECKING:
    from advisor.tuning.record import Record

_PRIOR_PAIRS = 1.0
"""Pairs of blocks that a prior variance counts as much as."""
_PRIOR_FREEDOM = 4.0
"""Degrees of freedom that the blocks' common error counts as, beside a block's own."""
_LAGS = 3
"""Anchors are compared with the next so many of their session."""
_PRIOR_DISTANCES = (1.0, 10.0)
_FLOOR = 1.0 / 25.0
"""Least share of a prior variance that an estimate may have."""
_LEAST_VARIANCE = 1e-6
_SPACING = (3, 10)


@dataclass(frozen=True)
class Score:
    """ln(throughput / baseline's) of a strategy, and its standard error."""

    mean: float
    error: float


@dataclass(frozen=True)
class Noise:
    """Standard deviations of ln(throughput) between measurements of one strategy; the values are the priors."""

    block: float = 0.015
    """Between blocks of one launch, what the blocks' own errors do not explain."""
    drift: float = 0.003
    """Of a random walk, per length of a block."""
    launch: float = 0.02
    """Between launches on the same nodes."""
    gang: float = 0.025
    """Between gangs: other nodes."""


def log_rate(block: Block) -> float:
    """Return ln(samples per second) from the robust step time: what search scores are made of."""
    if block.result is None or block.summary is None:
        raise ValueError(f"block {block.id} has no summary")
    return math.log(max(block.result.samples_per_step, 1e-12)) - block.summary.log_step_time


def estimate_scores(record: "Record") -> dict[int, Score]:
    """Return search trial's number -> score, for every trial with a settled block that did not fail.

    A trial that was given up keeps its score: it is surely slow, and few steps make its error larger.
    Trials of one strategy share the score of all their blocks.
    """
    anchors = [block for block in record.baseline_blocks if block.round is None]
    if not anchors:
        return {}
    field = _Field(record, anchors)
    blocks: dict[object, list[Block]] = {}
    trials = [t for t in record.trials_for(Purpose.SEARCH) if _counts(record, t)]
    for trial in trials:
        blocks.setdefault(key_of(trial.changes), []).extend(_list_blocks(record, trial))
    scores = {key: field.estimate_gain(group) for key, group in blocks.items() if group}
    return {t.number: scores[key] for t in trials if (key := key_of(t.changes)) in scores}


def estimate_noise(record: "Record") -> Noise:
    """Return the variance components of the baseline's blocks, each shrunk towards its prior.

    By moments: a squared difference of two blocks holds twice the variance of every luck that they do not share, and
    the drift of the time between them. What the finer levels explain is taken off before a coarser one is estimated.
    """
    prior, errors = Noise(), _estimate_variances(record)
    anchors = [block for block in record.baseline_blocks if block.round is None]
    sessions: dict[str, list[Block]] = {}
    for block in anchors:
        sessions.setdefault(block.session_id, []).append(block)
    pairs = [
        (
            _measure_distance(record, before, after),
            (log_rate(after) - log_rate(before)) ** 2 - errors[before.id] - errors[after.id],
            1.0 / _LAGS,
        )
        for group in sessions.values()
        for lag in range(1, _LAGS + 1)
        for before, after in zip(group, group[lag:], strict=False)
    ]
    luck, drift = _split_variance(prior, pairs)
    same: list[float] = []
    other: list[float] = []
    for a, b in pairwise(sessions.values()):
        own = sum(sum(errors[x.id] + luck for x in group) / len(group) ** 2 for group in (a, b))
        apart = fmean(map(log_rate, a)) - fmean(map(log_rate, b))
        excess = (apart**2 - own - drift * _measure_distance(record, a[-1], b[0])) / 2.0
        (same if _gang_of(record, a[0]) == _gang_of(record, b[0]) else other).append(excess)
    launch = _shrink(prior.launch, same)
    gang = _shrink(prior.gang, [excess - launch for excess in other])
    return Noise(math.sqrt(luck), math.sqrt(drift), math.sqrt(launch), math.sqrt(gang))


def space_anchors(record: "Record") -> int:
    """Return how many strategies are measured between two anchors: sqrt(6 V / q), from 3 to 10.

    With k strategies between two anchors, k of k + 1 blocks measure strategies, and drift (a random walk of variance
    q a block, interpolated between the anchors) adds q k / 6 to the variance V of a block. The knowledge gained per
    block, k / (k + 1) / (V + q k / 6), is largest at that k.
    """
    noise, errors = record.noise, _estimate_variances(record)
    variance = noise.block**2 + (median(errors.values()) if errors else 0.0)
    best = math.sqrt(6.0 * variance / noise.drift**2)
    return max(_SPACING[0], min(_SPACING[1], round(best)))


class _Field:
    """The baseline's level wherever a block was measured, known from the anchors.

    The anchors' covariance is factored once; a trial adds a row for each of its blocks.
    """

    def __init__(self, record: "Record", anchors: Sequence[Block]) -> None:
        self._record = record
        self._noise = record.noise
        self._errors = _estimate_variances(record)
        self._start = min(block.issued_at for block in record.usable)
        self._anchors = list(anchors)
        self._rows = _extend_factor([], self._list_rows([], self._anchors))

    def estimate_gain(self, blocks: Sequence[Block]) -> Score:
        """Generalised least squares of (level, gain) on the anchors and these blocks; returns the gain."""
        rows = _extend_factor(self._rows, self._list_rows(self._anchors, blocks))
        count = len(self._anchors)
        level = _solve_lower(rows, [1.0] * len(rows))
        gain = _solve_lower(rows, [0.0] * count + [1.0] * len(blocks))
        rates = _solve_lower(rows, [log_rate(block) for block in (*self._anchors, *blocks)])
        ll, lg, gg = _dot(level, level), _dot(level, gain), _dot(gain, gain)
        determinant = ll * gg - lg * lg
        mean = (ll * _dot(gain, rates) - lg * _dot(level, rates)) / determinant
        return Score(mean, math.sqrt(ll / determinant))

    def _list_rows(self, earlier: Sequence[Block], new: Sequence[Block]) -> list[list[float]]:
        """Covariances of each new block with all before it and with itself."""
        known = [*earlier]
        rows = []
        for block in new:
            known.append(block)
            row = [self._covary(block, other) for other in known]
            row[-1] += self._errors[block.id] + self._noise.block**2
            rows.append(row)
        return rows

    def _covary(self, a: Block, b: Block) -> float:
        """Covariance of two blocks' luck, their own excepted."""
        if a.session_id != b.session_id and _gang_of(self._record, a) != _gang_of(self._record, b):
            return 0.0
        since = (min(a.issued_at, b.issued_at) - self._start).total_seconds() / self._record.block_s
        shared = self._noise.gang**2 + self._noise.drift**2 * since
        return shared + (self._noise.launch**2 if a.session_id == b.session_id else 0.0)


def _counts(record: "Record", trial: Trial) -> bool:
    return not record.has_failed(trial) or trial.outcome is Outcome.PRUNED


def _list_blocks(record: "Record", trial: Trial) -> list[Block]:
    """The trial's steady blocks; an unsteady one only where nothing better came."""
    settled = record.settled(trial)
    if settled is None:
        return []
    own = [b for b in record.usable if b.trial_number == trial.number and b.round is None]
    return [b for b in own if b.summary and b.summary.steady] or [settled]


def _estimate_variances(record: "Record") -> Mapping[str, float]:
    """Return block id -> variance of its log rate as its own steps tell it.

    A standard error from six batches is itself off by a third. Its square is therefore averaged with what is common to
    all blocks, weighted by degrees of freedom (Smyth 2004's moderated variance); an unsteady block's is not lowered.
    """
    summaries = {block.id: block.summary for block in record.usable if block.summary}
    if not summaries:
        return {}
    common = median(s.log_step_time_se**2 * max(1, s.steady_steps) for s in summaries.values())
    variances = {}
    for name, s in summaries.items():
        own, usual = s.log_step_time_se**2, common / max(1, s.steady_steps)
        mixed = (s.freedom * own + _PRIOR_FREEDOM * usual) / (s.freedom + _PRIOR_FREEDOM)
        variances[name] = max(_LEAST_VARIANCE, mixed if s.steady else max(mixed, own))
    return variances


def _split_variance(prior: Noise, pairs: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Return the variance of blocks' luck and of the drift per block length, from (distance, excess, weight).

    The excess of a squared difference over the blocks' own errors is 2 luck + drift * distance in expectation (a
    variogram). First how many times the prior's it is, the prior counting as one pair; then a straight line by least
    squares, to which the prior in that size adds a point near and one far. A component at its floor leaves all to the
    other.
    """
    block, drift = prior.block**2, prior.drift**2
    ratios = sum(weight * excess / (2.0 * block + drift * distance) for distance, excess, weight in pairs)
    size = max(_FLOOR, (_PRIOR_PAIRS + ratios) / (_PRIOR_PAIRS + sum(weight for _, _, weight in pairs)))
    block, drift = size * block, size * drift
    points = [*pairs, *((d, 2.0 * block + drift * d, _PRIOR_PAIRS) for d in _PRIOR_DISTANCES)]
    total = sum(w for _, _, w in points)
    centre = sum(w * d for d, _, w in points) / total
    height = sum(w * y for _, y, w in points) / total
    square = sum(w * (d - centre) ** 2 for d, _, w in points)
    slope = sum(w * (d - centre) * y for d, y, w in points) / square
    least = 2.0 * _FLOOR * block
    if slope < _FLOOR * drift:
        slope = _FLOOR * drift
    elif height - slope * centre < least:
        slope = sum(w * d * (y - least) for d, y, w in points) / sum(w * d * d for d, _, w in points)
    return max(_FLOOR * block, (height - slope * centre) / 2.0), max(_FLOOR * drift, slope)


def _shrink(prior: float, variances: Sequence[float]) -> float:
    """Return the mean of estimated variances and of the prior's, which counts as one; at least 1/25 of the latter."""
    total = _PRIOR_PAIRS * prior**2 + sum(variances)
    return max(_FLOOR * prior**2, total / (_PRIOR_PAIRS + len(variances)))


def _measure_distance(record: "Record", a: Block, b: Block) -> float:
    return abs((b.issued_at - a.issued_at).total_seconds()) / record.block_s


def _gang_of(record: "Record", block: Block) -> tuple[str, ...]:
    return record.agents_of(block.session_id)


def _extend_factor(factor: Sequence[list[float]], rows: Iterable[Sequence[float]]) -> list[list[float]]:
    """Return the lower Cholesky factor with further rows of the matrix; O(n^2) for each."""
    done = list(factor)
    for row in rows:
        new: list[float] = []
        for column, above in enumerate(done):
            new.append((row[column] - _dot(new, above)) / above[column])
        new.append(math.sqrt(max(row[-1] - _dot(new, new), _LEAST_VARIANCE)))
        done.append(new)
    return done


def _solve_lower(factor: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Return x with factor · x = right."""
    solution: list[float] = []
    for row, value in zip(factor, right, strict=True):
        solution.append((value - _dot(solution, row)) / row[len(solution)])
    return solution


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the inner product over the shorter of the two."""
    return sum(x * y for x, y in zip(a, b, strict=False))
