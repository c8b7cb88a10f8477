"""What-if: forecasts follow the physics, say how far they reach, and refuse where nothing is known."""

from dataclasses import replace

import pytest

from advisor.protocol.answers.advice import Verdict
from advisor.protocol.answers.forecast import WhatIf
from advisor.protocol.asked.jobs import Budget, Job
from advisor.protocol.kinds import Effect
from advisor.protocol.nodes.cluster import Cluster, Link, Node
from advisor.tuning.explain.forecast import (
    ForecastImpossible,
    describe_forecast,
    forecast,
    forecast_from,
    list_forecasts,
)
from advisor.tuning.history.record import Record
from advisor.tuning.search.state import look
from tests.unit.tuning.simulated_cluster import QUIET, SimulatedCluster, make_facts, make_job, make_spec


@pytest.fixture(scope="module")
def measured() -> SimulatedCluster:
    spec = make_spec(
        knobs=("fuse_grad_size_in_MB", "fp16_allreduce", "num_threads"),
        allow=Effect.NUMERIC,
        budget=Budget(max_trials=6, max_seconds=400),
    )
    # Three tenths of a step are exposed communication, of which half the bytes take half.
    cluster = SimulatedCluster(
        make_job(spec), noise=QUIET, speed=lambda c: 1.0 / 0.85 if c.get("fp16_allreduce") else 1.0
    )
    cluster.advice = cluster.run()  # type: ignore[attr-defined]
    return cluster


def _give_links(job: Job, bits_per_second: int) -> Job:
    """The job on two nodes whose links are known."""
    link = Link(name="eth0", address="10.0.0.1", bits_per_second=bits_per_second)
    node = Node(hostname="n", cpu_count=4, memory_bytes=2**33, links=(link,))
    return job.model_copy(update={"cluster": Cluster(nodes=(node, node))})


def test_the_measured_cluster_is_predicted_as_it_was_measured(measured: SimulatedCluster) -> None:
    found = forecast(measured.job, measured.history, measured.now, WhatIf())
    assert found.nodes == 2
    assert found.baseline_step_time_s == pytest.approx(measured.step_s, rel=0.1)
    assert found.low < found.samples_per_s < found.high
    assert found.step_time_s <= found.baseline_step_time_s


def test_a_forecast_of_the_measured_cluster_is_what_was_measured(measured: SimulatedCluster) -> None:
    """Whatever the model makes of the step, only its ratios count."""
    advice = measured.advice  # type: ignore[attr-defined]
    found = forecast(measured.job, measured.history, measured.now, WhatIf())
    rate = found.samples_per_s * found.step_time_s / found.baseline_step_time_s
    assert rate == pytest.approx(advice.baseline_samples_per_s, rel=1e-6)


@pytest.mark.parametrize("off", ["strategies", "baseline"])
def test_a_model_that_misses_what_was_measured_forecasts_nothing(
    measured: SimulatedCluster, off: str
) -> None:
    record = Record(measured.job, measured.history, measured.now)
    state = look(record)
    assert state is not None
    assert state.model is not None
    blocks = record.baseline_blocks
    assert list_forecasts(state, {}, blocks)
    if off == "strategies":
        vars(state)["model"] = replace(state.model, residual=0.54)
    else:
        blocks = tuple(
            b.model_copy(update={"result": replace(b.result, step_time_s=(9.0,) * 20)})
            for b in blocks
            if b.result
        )
    assert list_forecasts(state, {}, blocks) == ()
    with pytest.raises(ForecastImpossible, match="Nothing can be forecast for job"):
        forecast_from(state, blocks, WhatIf(nodes=4))


def test_faster_links_never_slow_a_job_down_and_slower_ones_never_speed_it_up(
    measured: SimulatedCluster,
) -> None:
    record = Record(_give_links(measured.job, 10**10), measured.history, measured.now)
    state = look(record)
    assert state is not None
    times = [
        forecast_from(state, record.baseline_blocks, WhatIf(bits_per_s=rate)).baseline_step_time_s
        for rate in (3e9, 5e9, 1e10)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.2 * times[-1]
    with pytest.raises(ForecastImpossible, match="so far from what it measured"):
        forecast_from(state, record.baseline_blocks, WhatIf(bits_per_s=1e7))


def test_more_nodes_bring_more_samples_but_less_of_each_node(measured: SimulatedCluster) -> None:
    few = forecast(measured.job, measured.history, measured.now, WhatIf(nodes=2))
    many = forecast(measured.job, measured.history, measured.now, WhatIf(nodes=8))
    assert many.samples_per_s > few.samples_per_s
    assert many.samples_per_s < 4.4 * few.samples_per_s
    assert many.baseline_step_time_s >= few.baseline_step_time_s
    assert many.scaling_efficiency <= few.scaling_efficiency + 0.05


def test_a_larger_batch_hides_communication_and_says_what_it_does_not_know(
    measured: SimulatedCluster,
) -> None:
    rates = []
    for batch in (0.5, 1.0, 2.0, 4.0):
        found = forecast(measured.job, measured.history, measured.now, WhatIf(batch=batch))
        assert found.batch == batch
        rates.append(found.samples_per_s)
        assert ("another optimisation" in found.caveat) == (batch != 1.0)
    assert rates == sorted(rates), "what is communicated stays the same"
    assert rates[3] < 1.7 * rates[1], "computing grows along"
    assert "4 times the batch" in describe_forecast(found)


def test_a_far_forecast_has_a_wider_band_and_says_why(measured: SimulatedCluster) -> None:
    near = forecast(measured.job, measured.history, measured.now, WhatIf(nodes=8))
    far = forecast(measured.job, measured.history, measured.now, WhatIf(nodes=16))
    assert far.high / far.samples_per_s > near.high / near.samples_per_s
    assert "more than 4 times" in far.caveat
    assert "16 nodes" in describe_forecast(far)


def test_an_advice_names_more_nodes_and_other_links(measured: SimulatedCluster) -> None:
    record = Record(_give_links(measured.job, 10**10), measured.history, measured.now)
    found = list_forecasts(look(record), {}, record.baseline_blocks)
    assert [f.nodes for f in found if f.bits_per_s is None] == [4, 8, 16]
    assert [f.bits_per_s for f in found if f.bits_per_s is not None] == [1e11], "a tenth is too far to tell"


def test_without_a_baseline_or_gradients_nothing_is_predicted(measured: SimulatedCluster) -> None:
    fresh = SimulatedCluster(make_job())
    with pytest.raises(ForecastImpossible, match="has not measured its baseline yet"):
        forecast(fresh.job, fresh.history, fresh.now, WhatIf(nodes=4))
    blind = measured.job.model_copy(update={"facts": make_facts(gradient_bytes=0)})
    with pytest.raises(ForecastImpossible, match="neither the bytes of its gradients"):
        forecast(blind, measured.history, measured.now, WhatIf(nodes=4))


def test_advice_and_predict_say_the_same_about_the_same_cluster(measured: SimulatedCluster) -> None:
    advice = measured.advice  # type: ignore[attr-defined]
    assert advice.verdict is Verdict.CHANGE
    told = {(f.nodes, f.bits_per_s): f for f in advice.forecasts}
    assert len(told) >= 3
    for (nodes, rate), there in told.items():
        asked = forecast(measured.job, measured.history, measured.now, WhatIf(nodes=nodes, bits_per_s=rate))
        assert asked.model_dump(exclude={"nodes"}) == there.model_dump(exclude={"nodes"})


def test_the_band_grows_as_faster_links_shorten_a_step_and_too_large_a_doubt_is_refused(
    measured: SimulatedCluster,
) -> None:
    record = Record(_give_links(measured.job, 2 * 10**9), measured.history, measured.now)
    state = look(record)
    assert state is not None
    assert state.model is not None

    def band(rate: float) -> float:
        found = forecast_from(state, record.baseline_blocks, WhatIf(bits_per_s=rate))
        return found.high / found.samples_per_s - 1.0

    vars(state)["model"] = replace(state.model, residual=0.1)
    assert band(1e9) > band(2e9)
    assert band(1e10) > 1.1 * band(2e9)
    vars(state)["model"] = replace(state.model, residual=0.2)
    assert band(2e9) > 0.35
    with pytest.raises(ForecastImpossible, match="so far from what it measured"):
        band(1e10)
