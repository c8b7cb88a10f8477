"""Fits the cost model to what a job has measured so far."""

import math
from statistics import fmean

from advisor.protocol.trials import Purpose
from advisor.tuning.cost_model import CostModel, Observation, calibrate
from advisor.tuning.record import Record
from advisor.tuning.space import Space


def fit_model(record: Record, space: Space) -> CostModel | None:
    """Return the cost model of the probe and of every search trial with a score; None where too little is known."""
    probe = record.probe_blocks
    base_s = math.exp(fmean(b.summary.log_step_time for b in probe if b.summary)) if probe else 0.0
    own = space.context.baseline
    observations = [
        Observation({**own, **trial.changes}, base_s * math.exp(-found.mean), found.error)
        for trial in record.trials_for(Purpose.SEARCH)
        if (found := record.scores.get(trial.number)) is not None
    ]
    blocks = [*probe, *(b for b in record.usable if b.round is None and b not in probe)]
    return calibrate(space.context, blocks, observations)
