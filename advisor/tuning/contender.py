"""A strategy in line for its next block, and the block it gets."""

from collections.abc import Mapping
from dataclasses import dataclass

from advisor.protocol.base import Value
from advisor.protocol.jobs import Stage
from advisor.protocol.knobs import Effect
from advisor.protocol.strategy import effect_of, period_of
from advisor.protocol.trials import Purpose
from advisor.tuning.decisions import Measure, TrialDraft
from advisor.tuning.record import Record

PROFILE_STEPS = 3


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
        target_s=longer * wanted.block_s,
        profile_steps=PROFILE_STEPS,
        round=turn.round,
    )


def _whole_periods(steps: int, period: int) -> int:
    return -(-steps // period) * period
