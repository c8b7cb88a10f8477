"""Real trainings under the advised strategy, as the job's page shows them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from advisor.dashboard import formats
from advisor.dashboard.views.chips import Chip
from advisor.protocol.measured.runs import ProductionRun

_SILENT = timedelta(minutes=10)
"""A training that reported nothing for so long has ended, or cannot reach the server."""


@dataclass(frozen=True)
class RunLine:
    """One training."""

    host: str
    chip: Chip
    throughput: str
    advised: str
    """The least that was advised; a dash where nothing was."""
    ranks: int
    step: int
    began: str
    reported: str
    sentence: str
    """What was last told of it; empty where nothing was."""


def view_runs(runs: Sequence[ProductionRun], now: datetime) -> tuple[RunLine, ...]:
    """Build a line for each training."""
    return tuple(
        RunLine(
            host=run.host,
            chip=_judge(run, now),
            throughput=formats.rate(run.samples_per_s),
            advised=formats.rate(run.low) if run.low is not None else "–",
            ranks=run.ranks,
            step=run.step,
            began=formats.age(run.began_at, now),
            reported=formats.age(run.reported_at, now),
            sentence=run.sentence,
        )
        for run in runs
    )


def _judge(run: ProductionRun, now: datetime) -> Chip:
    if now - run.reported_at > _SILENT:
        return Chip("muted", "minus", "silent", "It has ended, or cannot reach the server.")
    if run.is_below:
        return Chip("bad", "alert", "slow", "Its throughput is below the advised interval.")
    word = "as advised" if run.low is not None else "running"
    return Chip("good", "check", word, "Its steps are as fast as they were.")
