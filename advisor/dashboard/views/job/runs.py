"""Real trainings under the advised strategy, as the job's page shows them."""

from datetime import datetime, timedelta

from advisor.dashboard.views.chips import Chip
from advisor.protocol.measured.runs import ProductionRun

_SILENT = timedelta(minutes=10)
"""A training that reported nothing for so long has ended, or cannot reach the server."""


def judge_run(run: ProductionRun, now: datetime) -> Chip:
    """Return the chip of a training: as advised, running, slow or silent."""
    if now - run.reported_at > _SILENT:
        return Chip("muted", "minus", "silent", "It has ended, or cannot reach the server.")
    if run.is_below:
        return Chip("bad", "alert", "slow", "Its throughput is below the advised interval.")
    word = "as advised" if run.low is not None else "running"
    return Chip("good", "check", word, "Its steps are as fast as they were.")
