"""The promise of the verdict: seldom a gain where there is none, nearly always one where there is."""

import math

import pytest

from advisor.protocol.advice import Advice, Verdict
from advisor.protocol.jobs import Budget, Measurement

from .simulated_cluster import Changes, Noise, SimulatedCluster, make_facts, make_job, make_spec

RESTLESS = Noise(step=0.03, correlation=0.4, block=0.01, session=0.03, drift=0.008, spikes=0.02)
CALM = Noise(step=0.01, correlation=0.2, block=0.003, session=0.02, drift=0.002, spikes=0.0)
"""Noise small enough for many early looks: the harder test of repeated looking."""


def advise(
    seed: int, noise: Noise, gain: float, min_gain: float, steps: int = 16, rounds: int = 12
) -> Advice:
    def speed(changes: Changes) -> float:
        return 1.0 + gain if changes.get("fuse_grad_size_in_MB") == 4.0 else 1.0

    spec = make_spec(
        knobs=("fuse_grad_size_in_MB", "num_threads"),
        min_gain=min_gain,
        budget=Budget(max_trials=4, max_seconds=1e6, max_rounds=rounds),
        measurement=Measurement(warmup_steps=2, min_steps=steps, max_steps=steps),
    )
    # Without known gradients there is no cost model: it takes time, and finds nothing where there is nothing.
    facts = make_facts() if gain else make_facts(gradient_bytes=0)
    job = make_job(spec, facts=facts)
    advice = SimulatedCluster(job, speed=speed, noise=noise, seed=seed).run()
    assert isinstance(advice, Advice)
    return advice


@pytest.mark.parametrize(("noise", "min_gain", "jobs"), [(RESTLESS, 0.01, 120), (CALM, 0.0, 280)])
def test_equal_strategies_are_called_a_gain_in_at_most_five_percent_of_jobs(
    noise: Noise, min_gain: float, jobs: int
) -> None:
    verdicts = [advise(seed, noise, gain=0.0, min_gain=min_gain).verdict for seed in range(jobs)]

    allowed = 0.05 * jobs + 1.64 * math.sqrt(jobs * 0.05 * 0.95)
    assert verdicts.count(Verdict.CHANGE) <= allowed


def test_intervals_hold_the_truth_in_at_least_95_percent_of_jobs() -> None:
    jobs, gain = 100, 0.05
    held = 0
    for seed in range(jobs):
        advice = advise(1000 + seed, CALM, gain=gain, min_gain=0.0)
        assert advice.gain is not None
        truth = 1 + gain if advice.changes.get("fuse_grad_size_in_MB") == 4.0 else 1.0
        held += advice.gain.low <= truth <= advice.gain.high

    assert held >= 0.95 * jobs - 1.64 * math.sqrt(jobs * 0.05 * 0.95)


def test_a_gain_of_eight_percent_is_found_in_nine_jobs_of_ten() -> None:
    jobs = 60
    found = 0
    for seed in range(jobs):
        advice = advise(2000 + seed, RESTLESS, gain=0.08, min_gain=0.01, steps=24, rounds=16)
        found += advice.verdict is Verdict.CHANGE and advice.changes.get("fuse_grad_size_in_MB") == 4.0

    assert found >= 0.9 * jobs
