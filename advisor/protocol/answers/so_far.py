"""What a running job's blocks say up to now, for everybody who watches it; not the statistics behind the advice."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from statistics import fmean, stdev

from advisor.protocol.answers.gains import Quality, judge_quality, spell_gain, spell_likely, spell_range
from advisor.protocol.asked.jobs import Job
from advisor.protocol.measured.estimates import Estimate, estimate_blocks
from advisor.protocol.measured.trials import Block, Contrast, JobHistory, Outcome, Purpose, Trial

_TWO_SIDED = 2.0
"""Standard errors on each side of what is told while it is still being measured."""


@dataclass(frozen=True)
class SoFar:
    """What the races of one strategy against the baseline say up to now; not the statistics behind the advice."""

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


@dataclass(frozen=True)
class Leader:
    """The best search trial so far."""

    trial_number: int
    gain: SoFar
    """Its throughput over the baseline's."""

    def describe(self) -> str:
        """`about +110 %, unconfirmed`; where that is not known, as far as it is."""
        quality = judge_quality(self.gain.low, self.gain.high)
        if quality is Quality.UNKNOWN:
            return "gain not known yet"
        return f"{'about ' if quality is Quality.KNOWN else ''}{self.gain.likely}, unconfirmed"


def best_so_far(job: Job, history: JobHistory) -> Leader | None:
    """Return the best search trial and its throughput over the baseline's, a first impression only.

    From its races where it has some, else against the baseline's blocks of the same session. None while there is
    nothing to compare. Only strategies on a rung that the job allows count. Not the statistics behind the advice:
    noise, and the luck of the best of many, are still in it.
    """
    baselines: dict[str, list[Block]] = {}
    measured: dict[int, list[Block]] = {}
    trials = {trial.number: trial for trial in history.trials}
    for block in history.done_blocks():
        if trials[block.trial_number].purpose is Purpose.BASELINE:
            baselines.setdefault(block.session_id, []).append(block)
        elif _may_win(trials[block.trial_number], job):
            measured.setdefault(block.trial_number, []).append(block)

    @cache
    def estimate_within(sessions: frozenset[str]) -> Estimate | None:
        return estimate_blocks(
            [block for session in sorted(sessions) for block in baselines.get(session, ())]
        )

    found = [
        Leader(number, gain)
        for number, blocks in measured.items()
        if (gain := gain_of(trials[number], blocks, partial(estimate_within, frozenset(_sessions(blocks)))))
    ]
    return max(found, key=lambda leader: leader.gain.ratio, default=None)


def gain_so_far(job: Job, history: JobHistory) -> SoFar | None:
    """Return what the verdict's races of the strategy that is being confirmed say; None before the first one.

    That is the first strategy on an allowed rung that was confirmed in this budget; rungs beside it are not told.
    """
    numbers = {t.number for t in history.trials if t.purpose is Purpose.CONFIRM and t.changes}
    numbers = {n for n in numbers if history.trial(n).effect.rank <= job.spec.allow.rank}
    raced = [b for b in history.done_blocks() if b.trial_number in numbers and _contrast(b) is not None]
    began = max(job.continued_at, default=job.created_at)
    confirmed = next((b.trial_number for b in raced if b.issued_at >= began), None)
    if confirmed is None:
        return None
    return _pool([block for block in raced if block.trial_number == confirmed])


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
    return SoFar(ratio, ratio * math.exp(-off), ratio * math.exp(off), mine.blocks, launches)


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
    return SoFar(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(errors), len(means))


def _sessions(blocks: Sequence[Block]) -> set[str]:
    return {block.session_id for block in blocks}


def _may_win(trial: Trial, job: Job) -> bool:
    sound = trial.outcome in {None, Outcome.FINISHED}
    return trial.purpose is Purpose.SEARCH and sound and trial.effect.rank <= job.spec.allow.rank


def _contrast(block: Block) -> Contrast | None:
    return block.summary.contrast if block.summary else None
