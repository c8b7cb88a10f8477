"""Losses at equal samples: a strategy's block against baseline training from the same state, and what that learned.

An inexact block is undone after it: the runtime puts weights, optimizer and random numbers back. So the next block of
exact mathematics in the session starts from the very state that the strategy started from, and the two are a matched
pair whatever their order in a round. Losses are compared over the same samples since the start of the block: over the
later half of the stretch that both blocks timed, where a difference has had time to show. The blocks of a pair train
on different batches, and the spread of that is in the error.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from advisor.protocol.base import Value
from advisor.protocol.knob_entries import CATALOGUE
from advisor.protocol.knobs import Effect, Switch
from advisor.protocol.strategy import effect_of
from advisor.protocol.trials import Block, BlockState

if TYPE_CHECKING:
    from advisor.tuning.record import Record

_FEWEST_LOSSES = 4
"""Losses that each block needs in the compared stretch."""
_FEWEST_PAIRS = 3
"""Pairs from which on their own spread tells the error."""


@dataclass(frozen=True)
class LossPair:
    """Blocks of a strategy, and the block of exact mathematics that started from the same state of the training."""

    reference: Block
    strategies: tuple[Block, ...]
    difference: float
    """The strategy's mean loss in the compared stretch minus the reference's."""
    error: float
    """Standard error of the difference, from the spread of the losses within the blocks."""
    fall: float
    """How far the reference's loss fell from the start of the block to the middle of the compared stretch."""
    fall_error: float


@dataclass(frozen=True)
class LossContrast:
    """Several matched pairs together."""

    pairs: tuple[LossPair, ...]
    difference: float
    """Mean over the pairs."""
    error: float
    """Its standard error: from the spread of the pairs; of less than three never below what their blocks say."""
    fall: float
    """Mean fall of the reference's loss: what was learned in the time of a pair."""
    fall_error: float

    @property
    def learned(self) -> bool:
        """Whether the reference's loss fell beyond doubt: otherwise a strategy that learns nothing looks no worse."""
        return self.fall > 3.0 * self.fall_error


def contrast_losses(record: "Record", blocks: Iterable[Block]) -> LossContrast | None:
    """Return the matched pairs that these blocks of one inexact strategy belong to; None without any.

    Blocks that share their reference (the last of one round and the first of the next) are one pair: counted twice,
    they would pretend to be independent.
    """
    matched: dict[str, tuple[Block, list[Block]]] = {}
    for block in blocks:
        reference = _find_reference(record, block)
        if reference is not None:
            matched.setdefault(reference.id, (reference, []))[1].append(block)
    pairs = [
        pair
        for reference, mine in matched.values()
        if (pair := _compare(record, reference, mine)) is not None
    ]
    if not pairs:
        return None
    differences, count = [pair.difference for pair in pairs], len(pairs)
    within = math.sqrt(math.fsum(pair.error**2 for pair in pairs)) / count
    between = stdev(differences) / math.sqrt(count) if count > 1 else 0.0
    return LossContrast(
        pairs=tuple(pairs),
        difference=fmean(differences),
        error=between if count >= _FEWEST_PAIRS else max(within, between),
        fall=fmean(pair.fall for pair in pairs),
        fall_error=math.sqrt(math.fsum(pair.fall_error**2 for pair in pairs)) / count,
    )


def list_blocks(record: "Record", changes: Mapping[str, Value]) -> list[Block]:
    """Return every usable block of these changes, whatever it was measured for."""
    numbers = {t.number for t in record.history.trials if t.changes == dict(changes)}
    return [b for b in record.usable if b.trial_number in numbers]


def has_losses(block: Block) -> bool:
    """Whether the block's losses can be compared."""
    return bool(block.result and len(block.result.losses) >= _FEWEST_LOSSES and not block.result.diverged)


def is_exact(block: Block) -> bool:
    """Whether the block trained with the baseline's mathematics, so that its steps stayed part of the training."""
    return effect_of(block.plan.overrides) is Effect.EXACT


def _find_reference(record: "Record", block: Block) -> Block | None:
    """The usable exact block that starts from the same state; None where there is none.

    In its own session that is the first exact one after it. In a launch of its own, before anything was trained, it
    is the first block of a launch that began with the baseline's mathematics: of the same round, else the nearest.
    """
    if not has_losses(block) or is_exact(block):
        return None
    own = [b for b in record.history.blocks if b.session_id == block.session_id and _has_trained(b)]
    later = [b for b in own if b.ordinal > block.ordinal and is_exact(b)]
    if later:
        first = min(later, key=lambda b: b.ordinal)
        return first if record.is_usable(first) and has_losses(first) else None
    if any(not _is_undone(record, b) for b in own if b.ordinal < block.ordinal):
        return None
    firsts: dict[str, Block] = {}
    for other in record.history.blocks:
        if other.session_id != block.session_id and _has_trained(other):
            firsts.setdefault(other.session_id, other)
    fitting = [b for b in firsts.values() if is_exact(b) and record.is_usable(b) and has_losses(b)]
    return min(
        fitting,
        key=lambda b: (b.round != block.round, abs((b.issued_at - block.issued_at).total_seconds())),
        default=None,
    )


def _is_undone(record: "Record", block: Block) -> bool:
    """Whether the runtime put the training's state back after the block: it does where it switched an inexact knob."""
    switched = [name for name in block.plan.overrides if CATALOGUE[name].switch is not Switch.COLD]
    return not record.switches_at_launch and any(CATALOGUE[n].effect is not Effect.EXACT for n in switched)


def _has_trained(block: Block) -> bool:
    return block.state is BlockState.DONE and block.result is not None and block.result.steps > 0


def _compare(record: "Record", reference: Block, mine: Sequence[Block]) -> LossPair | None:
    blocks = [reference, *mine]
    start = max(_first_sample(b) for b in blocks)
    end = min(_last_sample(b) for b in blocks)
    middle = (start + end) / 2.0
    stretches = [_cut(b, middle, end) for b in blocks]
    if any(len(stretch) < _FEWEST_LOSSES for stretch in stretches):
        return None
    slope, slope_error = _fit_slope(_course(record, reference))
    centre = (middle + end) / 2.0
    theirs, ours = stretches[0], stretches[1:]
    errors = [_error_of(stretch) for stretch in ours]
    ours_error = math.sqrt(math.fsum(error**2 for error in errors)) / len(errors)
    return LossPair(
        reference=reference,
        strategies=tuple(mine),
        difference=fmean(fmean(stretch) for stretch in ours) - fmean(theirs),
        error=math.hypot(ours_error, _error_of(theirs)),
        fall=-slope * centre,
        fall_error=slope_error * centre,
    )


def _first_sample(block: Block) -> float:
    """Samples of all ranks from the block's start to its first timed step."""
    return block.result.warmup_steps * block.result.samples_per_step if block.result else 0.0


def _last_sample(block: Block) -> float:
    return _first_sample(block) + (
        len(block.result.losses) * block.result.samples_per_step if block.result else 0.0
    )


def _cut(block: Block, start: float, end: float) -> list[float]:
    """The losses between two counts of samples since the block's start."""
    if block.result is None:
        return []
    first, per_step = _first_sample(block), block.result.samples_per_step
    return [
        loss for i, loss in enumerate(block.result.losses) if start <= first + (i + 0.5) * per_step <= end
    ]


def _error_of(losses: Sequence[float]) -> float:
    """Standard error of the mean of losses of successive batches, after their straight trend is taken off."""
    _, residual = _fit_line([(float(i), loss) for i, loss in enumerate(losses)])
    return residual / math.sqrt(len(losses))


def _course(record: "Record", reference: Block) -> list[tuple[float, float]]:
    """(samples since the start of the block before, loss) of the reference and its exact neighbours in the session."""
    chain = sorted(
        (
            b
            for b in record.history.blocks
            if b.session_id == reference.session_id and _has_trained(b) and is_exact(b)
        ),
        key=lambda b: b.ordinal,
    )
    place = next((i for i, b in enumerate(chain) if b.id == reference.id), 0)
    points: list[tuple[float, float]] = []
    begin = 0.0
    for block in chain[max(0, place - 1) : place + 2]:
        if block.result is None:
            continue
        per_step = block.result.samples_per_step
        first = begin + _first_sample(block)
        points += [(first + (i + 0.5) * per_step, loss) for i, loss in enumerate(block.result.losses)]
        steps = block.result.warmup_steps + block.result.steps + block.result.excluded_steps
        begin += (steps + block.plan.profile_steps) * per_step
    return points


def _fit_slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Least-squares slope with its standard error; a slope of 0 with an endless error for too few points."""
    slope, residual = _fit_line(points)
    centre = fmean(x for x, _ in points) if points else 0.0
    spread = math.fsum((x - centre) ** 2 for x, _ in points)
    if len(points) < _FEWEST_LOSSES or spread <= 0.0:
        return 0.0, math.inf
    return slope, residual / math.sqrt(spread)


def _fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Slope and residual standard deviation of the least-squares line."""
    if len(points) < _FEWEST_LOSSES - 1:
        return 0.0, 0.0
    x_mean, y_mean = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = math.fsum((x - x_mean) ** 2 for x, _ in points)
    slope = math.fsum((x - x_mean) * (y - y_mean) for x, y in points) / spread if spread > 0 else 0.0
    rest = math.fsum((y - y_mean - slope * (x - x_mean)) ** 2 for x, y in points)
    return slope, math.sqrt(rest / (len(points) - 2))
