"""What a running job has found up to now: the planner's own standing, and for tables each strategy's races."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

from advisor.protocol.answers.gains import Quality, judge_quality, spell_gain, spell_likely, spell_range
from advisor.protocol.base import Message
from advisor.protocol.measured.estimates import Estimate, estimate_blocks
from advisor.protocol.measured.trials import Block, Contrast, Purpose, Trial

_TWO_SIDED = 2.0
"""Standard errors on each side of what is told while it is still being measured."""


class SoFar(Message):
    """What races of one strategy against the baseline say up to now."""

    ratio: float
    low: float
    high: float
    races: int
    launches: int

    @property
    def likely(self) -> str:
        """Its likeliest value as far as it is known: `+12.0 %`, `3.1x`, `not known`."""
        return spell_likely(self.ratio, self.low, self.high)

    def describe(self) -> str:
        """`6 races in 2 launches · +12 % (+9 … +15 % so far)`."""
        races = f"{self.races} race{'s' if self.races != 1 else ''}"
        measured = f"{races} in {self.launches} launch{'es' if self.launches != 1 else ''}"
        quality = judge_quality(self.low, self.high)
        if quality is not Quality.KNOWN:
            return f"{measured} · {'gain not known yet' if quality is Quality.UNKNOWN else f'{self.likely} so far'}"
        return (
            f"{measured} · {spell_gain(self.ratio)} ({spell_range(self.ratio, self.low, self.high)} so far)"
        )


class Standing(Message):
    """The strategy that the planner held for best when it made the latest race: what every screen tells meanwhile."""

    trial_number: int
    gain: SoFar
    """Its throughput over the baseline's: the verdict's own interval once it is being confirmed, else what the search
    believes, the luck of a launch included."""
    chance: float | None = None
    """Probability that it is the best of the measured strategies; None once it is being confirmed."""

    @property
    def is_confirmed(self) -> bool:
        """Whether the verdict's races are about it."""
        return self.chance is None

    def describe(self) -> str:
        """`about +110 %, unconfirmed`; where that is not known, as far as it is."""
        quality = judge_quality(self.gain.low, self.gain.high)
        if quality is Quality.UNKNOWN:
            return "gain not known yet"
        return f"{'about ' if quality is Quality.KNOWN else ''}{self.gain.likely}, unconfirmed"


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
