"""Fits the cost model to what a job has measured so far, once for each state of its history."""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import fmean

from advisor.protocol.trials import Purpose
from advisor.tuning.composition import key_of
from advisor.tuning.cost_model import CostModel, Observation, calibrate
from advisor.tuning.record import Record
from advisor.tuning.space import Space

_KEPT = 16
"""Fits that are kept: a server has few jobs that search at one time, and each asks for its own again and again."""


@dataclass(frozen=True)
class Measured:
    """A record and its space, equal to another one where everything that a fit depends on is."""

    key: tuple[object, ...]
    record: Record = field(compare=False)
    space: Space = field(compare=False)


def identify(record: Record, space: Space) -> Measured:
    """Return the record with a key made of its contents: fits are a function of them, so that keeping one is safe."""
    job = record.job
    blocks = tuple(
        (b.id, b.summary.log_step_time, b.summary.log_step_time_se) for b in record.usable if b.summary
    )
    trials = tuple((t.number, t.purpose, t.outcome, key_of(t.changes)) for t in record.history.trials)
    sessions = tuple((s.id, s.state, s.outcome, s.agents) for s in record.sessions)
    facts = job.facts.model_dump_json() if job.facts else ""
    described = (
        job.id,
        job.spec.model_dump_json(),
        facts,
        job.cluster.model_dump_json(),
        key_of(job.baseline),
    )
    return Measured((*described, blocks, trials, sessions), record, space)


def fit_model(record: Record, space: Space) -> CostModel | None:
    """Return the cost model of the probe and of every search trial with a score; None where too little is known."""
    return _fit(identify(record, space))


@lru_cache(maxsize=_KEPT)
def _fit(measured: Measured) -> CostModel | None:
    record, space = measured.record, measured.space
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
