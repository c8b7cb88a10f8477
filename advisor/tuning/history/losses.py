"""Losses at equal samples: a strategy against the baseline's mathematics from the same state, and what that learned.

Where an inexact strategy takes part in a race, every segment of every arm begins from one state of the training: the
runtime puts weights, optimizer and random numbers back before each. So the segments of one cycle are a matched pair.
After each segment the ranks' mean parameters are held against the same batches while nothing is learned (a loss check):
how hard batches are cancels out. How far the strategy's lag differs from batch to batch does not: all pairs of a launch
share its batches, so it is a part of the error of its own, beside that of the pairs, whose segments train on different
batches. Without a loss check the losses of the later half of the segments are compared, where a difference has had time
to show; those are of each rank's own parameters.

Where every strategy is a launch of its own, the first block of a launch begins from the script's own start: a
strategy's is matched with that of the race's reference.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean, median_low, stdev, variance

import numpy as np

from advisor.protocol.base import Value
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Block
from advisor.tuning.history.record import Record

_FEWEST_LOSSES = 4
"""Losses that each segment needs in the compared stretch."""
_FEWEST_PAIRS = 3
"""Pairs from which on their own spread tells the error."""


@dataclass(frozen=True)
class LossPair:
    """A strategy's segment and the reference's that began from the same state of the training."""

    difference: float
    """The strategy's mean loss minus the reference's, over the batches of a check or the compared stretch."""
    error: float
    """Standard error of the difference, from its spread over the batches or of the losses within the segments."""
    fall: float
    """How far the reference's loss fell in its segment, in a stretch up to the middle of the compared part."""
    fall_error: float
    level: float
    """The reference's mean loss in training, over the later half."""
    steps: int
    """The reference's, from the state on."""
    on_batches: tuple[tuple[float, float], ...] = ()
    """Difference and fall on each batch of a check; empty without one."""
    is_from_start: bool = False
    """Both are launches from the script's own start, as those of the other pairs: all learn from the same batches."""


@dataclass(frozen=True)
class LossContrast:
    """Several matched pairs together."""

    pairs: tuple[LossPair, ...]
    difference: float
    """Mean over the pairs."""
    error: float
    """Its standard error: from the spread of the pairs and of the batches that they share."""
    freedom: int
    """Degrees of freedom of that error."""
    fall: float
    """Mean fall of the reference's loss: what was learned in the time of a pair."""
    fall_error: float

    @property
    def steps(self) -> int:
        """Of a typical pair."""
        return median_low(pair.steps for pair in self.pairs)

    @property
    def learned(self) -> bool:
        """Whether the reference's loss fell beyond doubt: otherwise a strategy that learns nothing looks no worse."""
        return self.fall > 3.0 * self.fall_error

    def error_beyond(self, share: float) -> tuple[float, int]:
        """Return the standard error of the difference minus this share of the fall, which are of the same losses, and
        its degrees of freedom."""
        return _find_error(self.pairs, 1.0, -share)


def contrast_losses(record: Record, blocks: Iterable[Block]) -> LossContrast | None:
    """Return the matched pairs that these blocks of one inexact strategy belong to; None without any.

    Where some of them have loss checks, only those count: training losses are far noisier, and biased.
    """
    found = list(blocks)
    checked = [block for block in found if block.result and block.result.loss_checks]
    pairs = [pair for block in checked or found for pair in _match(record, block)]
    return pool_pairs(pairs) if pairs else None


def pool_pairs(pairs: Sequence[LossPair]) -> LossContrast:
    """Return one or more matched pairs together."""
    error, freedom = _find_error(pairs, 1.0, 0.0)
    return LossContrast(
        pairs=tuple(pairs),
        difference=fmean(pair.difference for pair in pairs),
        error=error,
        freedom=freedom,
        fall=fmean(pair.fall for pair in pairs),
        fall_error=_find_error(pairs, 0.0, 1.0)[0],
    )


def _find_error(pairs: Sequence[LossPair], of_difference: float, of_fall: float) -> tuple[float, int]:
    """Standard error of the pairs' mean of so much of the difference plus so much of the fall, and its freedom.

    Pairs and batches are crossed random effects: the variance of their mean is MS_pairs + MS_batches - MS_rest over
    all cells (Cornfield and Tukey 1956; Searle, Casella and McCulloch 1992, chapter 4), never less than what either
    says by itself; its degrees of freedom are Satterthwaite's (1946). Where launches have other batches, what batches
    share by their place is less, and so is its part. Of fewer than three pairs the error is never below what their own
    batches or losses say; of launches from one start, however many, never below what a single one's say.
    """
    count = len(pairs)
    freedom = max(1, count - 1)
    means = [of_difference * pair.difference + of_fall * pair.fall for pair in pairs]
    found = between = variance(means) / count if count > 1 else 0.0
    size = min(len(pair.on_batches) for pair in pairs)
    if count > 1 and size > 1:
        cells = np.array([pair.on_batches[:size] for pair in pairs]) @ (of_difference, of_fall)
        batches = cells.mean(axis=0)
        rest = cells - batches - cells.mean(axis=1, keepdims=True) + cells.mean()
        residual = float((rest**2).sum()) / ((count - 1) * (size - 1) * count * size)
        shared = float(batches.var(ddof=1)) / size
        found = max(between + shared - residual, between, shared)
        spread = between**2 / freedom + shared**2 / (size - 1)
        freedom = max(min(freedom, size - 1), int(found**2 / spread) if spread > 0.0 else 0)
    own = [(of_difference * pair.error) ** 2 + (of_fall * pair.fall_error) ** 2 for pair in pairs]
    if all(pair.is_from_start for pair in pairs):
        # Further launches repeat the first one's batches, and tell nothing about others.
        if fmean(own) >= found:
            found, freedom = fmean(own), max(freedom, min(pair.steps for pair in pairs) // 2 - 2)
    elif count < _FEWEST_PAIRS:
        found = max(found, math.fsum(own) / count**2)
    return math.sqrt(found), freedom


def list_blocks(record: Record, changes: Mapping[str, Value]) -> list[Block]:
    """Return every usable block of these changes, whatever it was measured for."""
    numbers = [t.number for t in record.history.trials if t.changes == dict(changes)]
    return [block for number in numbers for block in record.usable_by_trial.get(number, ())]


def has_losses(block: Block) -> bool:
    """Whether the block's losses can be compared."""
    return bool(block.result and len(block.result.losses) >= _FEWEST_LOSSES and not block.result.diverged)


def _match(record: Record, block: Block) -> list[LossPair]:
    """The pairs of a block with the exact arm of its race that began from the same state."""
    if record.is_exact(block.plan.overrides) or not has_losses(block):
        return []
    arms = record.races.get(block.race, ())
    exact = [a for a in arms if record.is_exact(a.plan.overrides) and has_losses(a)]
    mine, theirs = block.result, exact[0].result if exact else None
    if mine is None or theirs is None:
        return []
    if exact[0].session_id == block.session_id:
        if theirs.loss_checks:
            return _compare_on_same_batches(mine, theirs)
        segments = zip(_cut(mine), _cut(theirs), strict=False)
    elif _is_first(record, block) and _is_first(record, exact[0]):
        # Nothing was put back within these blocks: each is one course from the start.
        pair = _compare(mine.losses, _join(theirs.losses, _count_joined(mine, theirs)))
        return [replace(pair, is_from_start=True)] if pair is not None else []
    else:
        return []
    larger = _count_joined(mine, theirs)
    return [pair for m, t in segments if (pair := _compare(m, _join(t, larger))) is not None]


def _count_joined(result: BlockResult, reference: BlockResult) -> int:
    """Steps of the reference that one step of a larger batch stands for."""
    return (
        round(result.samples_per_step / reference.samples_per_step) if reference.samples_per_step > 0 else 1
    )


def _is_first(record: Record, block: Block) -> bool:
    return record.blocks_in(block.session_id)[0].id == block.id


def _cut(result: BlockResult) -> list[tuple[float, ...]]:
    """The losses of each segment; of the whole block where they are not told segment by segment."""
    if len(result.losses) != sum(result.segments) or not result.segments:
        return [result.losses]
    ends = list(accumulate(result.segments))
    return [result.losses[end - count : end] for end, count in zip(ends, result.segments, strict=True)]


def _join(losses: Sequence[float], count: int) -> list[float]:
    """Mean losses of so many steps each: what one step of a larger batch stands for."""
    if count < 2:
        return list(losses)
    return [fmean(losses[at : at + count]) for at in range(0, len(losses) - count + 1, count)]


def _compare_on_same_batches(result: BlockResult, reference: BlockResult) -> list[LossPair]:
    later = [loss for segment in _cut(reference) for loss in segment[len(segment) // 2 :]]
    start, level = reference.loss_at_start, fmean(later) if later else 0.0
    segments = reference.segments or (len(reference.losses),)
    pairs = []
    for mine, theirs, steps in zip(result.loss_checks, reference.loss_checks, segments, strict=False):
        if not len(start) == len(mine) == len(theirs) > 1:
            continue
        differences = [m - t for m, t in zip(mine, theirs, strict=True)]
        falls = [s - t for s, t in zip(start, theirs, strict=True)]
        root = math.sqrt(len(start))
        pairs.append(
            LossPair(
                difference=fmean(differences),
                error=stdev(differences) / root,
                fall=fmean(falls),
                fall_error=stdev(falls) / root,
                level=level,
                steps=steps,
                on_batches=tuple(zip(differences, falls, strict=True)),
            )
        )
    return pairs


def _compare(mine: Sequence[float], theirs: Sequence[float]) -> LossPair | None:
    length = min(len(mine), len(theirs))
    half = length // 2
    ours, reference = mine[half:length], theirs[half:length]
    if len(ours) < _FEWEST_LOSSES:
        return None
    slope, slope_error = _fit_slope(list(enumerate(theirs)))
    centre = (half + length) / 2.0
    return LossPair(
        difference=fmean(ours) - fmean(reference),
        # Step by step: where both learn from the same batches, how hard those are cancels out.
        error=_error_of([m - t for m, t in zip(ours, reference, strict=True)]),
        fall=-slope * centre,
        fall_error=slope_error * centre,
        level=fmean(reference),
        steps=length,
    )


def _error_of(losses: Sequence[float]) -> float:
    """Standard error of the mean of losses of successive batches, after their straight trend is taken off."""
    _, residual = _fit_line(list(enumerate(losses)))
    return residual / math.sqrt(len(losses))


def _fit_slope(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Least-squares slope with its standard error; a slope of 0 with an endless error for too few points."""
    slope, residual = _fit_line(points)
    centre = fmean(x for x, _ in points) if points else 0.0
    spread = math.fsum((x - centre) ** 2 for x, _ in points)
    if len(points) < _FEWEST_LOSSES or spread <= 0.0:
        return 0.0, math.inf
    return slope, residual / math.sqrt(spread)


def _fit_line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Slope and residual standard deviation of the least-squares line."""
    if len(points) < _FEWEST_LOSSES - 1:
        return 0.0, 0.0
    x_mean, y_mean = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = math.fsum((x - x_mean) ** 2 for x, _ in points)
    slope = math.fsum((x - x_mean) * (y - y_mean) for x, y in points) / spread if spread > 0 else 0.0
    rest = math.fsum((y - y_mean - slope * (x - x_mean)) ** 2 for x, y in points)
    return slope, math.sqrt(rest / (len(points) - 2))
