"""A strategy in line for its next block, and the block it gets."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from advisor.protocol.base import Value
from advisor.protocol.jobs import Stage
from advisor.protocol.knobs import Effect
from advisor.protocol.strategy import effect_of, period_of
from advisor.protocol.trials import Purpose
from advisor.protocol.workload import WorkloadKind
from advisor.tuning.decisions import Measure, TrialDraft
from advisor.tuning.record import Record

PROFILE_STEPS = 3
_LEAST_TARGET_ERROR = 0.005
_GROWTH = 2.0
"""Times the wanted length to which a search block may grow while its error is above the target."""
_WORTHWHILE = 0.90
"""Of the best throughput; research: four of five strategies at 0.8 are given up after eight steps, none at 0.97."""


RUNTIMES_LUCK = 0.015
"""Standard deviation of a block's luck that the ranks themselves allow for (`agent/runtime/early_end.py`)."""
_SURELY = 2.33
"""Normal quantile of 99 %."""


@dataclass(frozen=True)
class Contender:
    """A strategy with the purpose it is measured for; its trial may not exist yet."""

    purpose: Purpose
    changes: Mapping[str, Value]
    because: str

    @property
    def effect(self) -> Effect:
        """Its rung."""
        return effect_of(self.changes)


BASELINE = Contender(
    Purpose.BASELINE, {}, "The script as it stands: every gain is against it, and it shows the noise."
)


@dataclass(frozen=True)
class Turn:
    """The next block: whose, in which stage and round, and why now."""

    stage: Stage
    contender: Contender
    because: str
    round: int | None = None
    extension: bool = False
    """The second, longer try of a block that was not steady."""
    fresh: bool = False
    """The live session must not measure it; the next one may."""


def issue(turn: Turn, record: Record) -> Measure:
    """Return the order for the turn's block, which holds whole periods."""
    contender, wanted = turn.contender, record.job.spec.measurement
    trial = record.find_trial(contender.purpose, contender.changes)
    period = period_of(contender.changes)
    longer = 2 if turn.extension else 1
    least = _whole_periods(longer * max(wanted.min_steps, 12 * period if period > 1 else 0), period)
    searching = contender.purpose is Purpose.SEARCH
    return Measure(
        stage=turn.stage,
        because=turn.because,
        trial=TrialDraft(contender.purpose, contender.changes, contender.effect, contender.because)
        if trial is None
        else trial.number,
        overrides=contender.changes,
        warmup_steps=_whole_periods(wanted.warmup_steps, period),
        min_steps=least,
        max_steps=max(least, _whole_periods(longer * wanted.max_steps, period)),
        target_s=longer * wanted.block_s * (_GROWTH if searching else 1.0),
        profile_steps=PROFILE_STEPS,
        round=turn.round,
        give_up_s=_find_limit_s(record, contender) if searching else None,
        target_error=_find_target_error(record) if searching else None,
        calibrate=_is_second_probe(turn, record),
    )


def _find_target_error(record: Record) -> float:
    """Return the standard error from which more steps of a search block tell the ranking next to nothing more.

    Half of what blocks differ by anyway: the error then adds an eighth to it. Only search blocks end early. Anchors
    serve many scores; rounds are reported with their stalls, which the medians of a few steps do not show, and adapt
    by their number.
    """
    return max(_LEAST_TARGET_ERROR, record.noise.block / 2.0)


def _find_limit_s(record: Record, contender: Contender) -> float | None:
    """Return the seconds a step must not surely exceed for the strategy to be worth measuring; None without a limit.

    Throughput below 0.90 times the best of the strategies it competes with: those of the allowed rungs, or of its own
    higher one. The best is a score less its standard error, because the best of many noisy scores looks too good.
    A strategy of the allowed rungs competes with the baseline at least. Where blocks differ by more than the ranks
    allow for, the limit is looser: a good strategy is not to be lost to one slow moment. None while other gangs
    measure too: seconds on other nodes, or beside another load, are not those of the best.
    """
    if len(record.history.live_sessions()) > 1:
        return None
    allowed = record.job.spec.allow.rank
    rank = contender.effect.rank
    rivals = [
        score - (record.score_error(trial) or 0.0)
        for trial in record.trials_for(Purpose.SEARCH)
        if (score := record.score(trial)) is not None
        and (trial.effect.rank <= allowed if rank <= allowed else trial.effect.rank == rank)
        and not record.has_failed_anywhere(trial.changes)
    ]
    if rank <= allowed:
        rivals.append(0.0)
    anchor = next((block.summary for block in reversed(record.baseline_blocks)), None)
    if not rivals or anchor is None:
        return None
    luck = math.sqrt(2.0) * math.hypot(record.noise.block, anchor.log_step_time_se)
    doubt = _SURELY * max(0.0, luck - RUNTIMES_LUCK)
    return math.exp(anchor.log_step_time - max(rivals) + doubt) / _WORTHWHILE


def _is_second_probe(turn: Turn, record: Record) -> bool:
    """The first block of all finds the caches cold; the probe's second one also measures links and gradients."""
    pytorch = record.job.spec.workload.kind is WorkloadKind.PYTORCH
    return turn.stage is Stage.PROBE and pytorch and len(record.baseline_blocks) == 1


def _whole_periods(steps: int, period: int) -> int:
    return -(-steps // period) * period
