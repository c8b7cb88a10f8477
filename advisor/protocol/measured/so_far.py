"""What each strategy's races say up to now, for tables; not the statistics behind the advice."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

from advisor.protocol.measured.estimates import Estimate, estimate_blocks
from advisor.protocol.measured.trials import Block, Contrast, Purpose, Trial
from advisor.protocol.standing import SoFar

_TWO_SIDED = 2.0
"""Standard errors on each side of what is told while it is still being measured."""


def gain_of(
    trial: Trial, blocks: Sequence[Block], estimate_baseline: Callable[[], Estimate | None]
) -> SoFar | None:
    """Return a trial's throughput over the baseline's, for tables; None of the baseline and before its blocks.

    From its races against the baseline, as the verdict has it. One that never raced the baseline is held against all of
    the baseline's blocks, at whatever time they were measured: these are estimated where they are needed, once for all.
    """
    if not trial.number:
        return None
    if trial.purpose in {Purpose.SEARCH, Purpose.CONFIRM} and (found := _pool(blocks)) is not None:
        return found
    mine, theirs = estimate_blocks(blocks), estimate_baseline()
    if mine is None or theirs is None:
        return None
    off = math.hypot(*(math.log1p(each.half_width / each.samples_per_s) for each in (mine, theirs)))
    ratio = mine.samples_per_s / theirs.samples_per_s
    launches = len(_sessions(blocks))
    return SoFar(
        ratio=ratio,
        low=ratio * math.exp(-off),
        high=ratio * math.exp(off),
        races=mine.blocks,
        launches=launches,
    )


def _pool(blocks: Sequence[Block]) -> SoFar | None:
    """What a strategy's races against the first arm say together; None without one."""
    launches: dict[str, list[tuple[float, float]]] = {}
    for block in blocks:
        if (contrast := _contrast(block)) is not None:
            launches.setdefault(block.session_id, []).append((contrast.total, contrast.total_error))
    if not launches:
        return None
    means = [fmean(mean for mean, _ in races) for races in launches.values()]
    errors = [error for races in launches.values() for _, error in races]
    within = math.sqrt(sum(error**2 for error in errors)) / len(errors)
    between = stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 0.0
    mean, half = fmean(means), _TWO_SIDED * max(within, between)
    return SoFar(
        ratio=math.exp(mean),
        low=math.exp(mean - half),
        high=math.exp(mean + half),
        races=len(errors),
        launches=len(means),
    )


def _sessions(blocks: Sequence[Block]) -> set[str]:
    return {block.session_id for block in blocks}


def _contrast(block: Block) -> Contrast | None:
    return block.summary.contrast if block.summary else None
