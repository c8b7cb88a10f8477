"""The cost model fitted to what a job has measured so far."""

import math

from advisor.tuning.history.scores import Scoreboard
from advisor.tuning.model.cost_model import CostModel, TimedStrategy, calibrate
from advisor.tuning.space.space import Space


def fit_model(scores: Scoreboard, space: Space) -> CostModel | None:
    """Return the cost model of the probe and of every search trial with a score; None where too little is known."""
    record = scores.record
    if record.probe is None or record.probe.summary is None:
        return None
    base_s = math.exp(record.probe.summary.log_step_time)
    own = space.context.baseline
    observations = [
        TimedStrategy({**own, **record.trial[number].changes}, base_s * math.exp(-found.mean), found.error)
        for number, found in scores.throughput.items()
    ]
    searched = [b for b in record.usable if b.trial_number in scores.throughput]
    return calibrate(space.context, [*record.probe_blocks, *searched], observations)
