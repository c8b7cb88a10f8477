"""Which jobs are alike, and which strategies of earlier ones a new job is told."""

import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from advisor.protocol.answers.advice import Advice, Interval, LaunchTold, RungAdvice, Verdict
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import JobHistory
from advisor.protocol.nodes.cluster import Cluster, Link, Node
from advisor.protocol.nodes.testbed import Testbed
from advisor.tuning.space.similarity import (
    Fingerprint,
    choose_earlier,
    choose_earlier_launches,
    measure_likeness,
    take_fingerprint,
)
from tests.unit.services.scripted_tuning import ScriptedTuning
from tests.unit.tuning.simulated_cluster import make_facts, make_job, make_spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BASE = Fingerprint(
    kind="pytorch", backend="nccl", device="cuda", device_name="H200", torch_version="2.13", gradient_bytes=98e6,
    layers=107, parameter_tensors=161, world_size=16, nodes=2, bits_per_s=100e9,
)  # fmt: skip


def finished(
    job_id: str, changes: dict[str, Value] | None, ratio: float = 1.2, owner: str = "ada", **facts: object
) -> tuple[Job, Advice]:
    """A finished job and its advice: to change, or (without changes) to keep the baseline."""
    spec = make_spec(name=f"name-of-{job_id}")
    job = make_job(spec, id=job_id, owner=owner, facts=make_facts(**facts))
    advice = ScriptedTuning().advise(job, JobHistory(), NOW)
    if changes is None:
        return job, advice
    gain = Interval(ratio=ratio, low=ratio - 0.02, high=ratio + 0.02, rounds=8, sessions=2)
    return job, advice.model_copy(
        update={"verdict": Verdict.CHANGE, "changes": Changes(changes), "gain": gain}
    )


def mine(**fields: Any) -> Job:
    return make_job(id="mine", owner="ada", **fields)


def test_same_workload_on_the_same_cluster_is_wholly_alike() -> None:
    assert measure_likeness(BASE, BASE) == 1.0


@pytest.mark.parametrize("other", [{"kind": "command"}, {"backend": "gloo"}, {"device": "cpu"}])
def test_other_kind_backend_or_device_is_not_alike_at_all(other: dict[str, Any]) -> None:
    assert measure_likeness(BASE, replace(BASE, **other)) == 0.0


def test_likeness_falls_with_the_doublings_between_sizes_and_is_symmetric() -> None:
    twice, four = replace(BASE, gradient_bytes=2 * 98e6), replace(BASE, gradient_bytes=4 * 98e6)
    assert measure_likeness(BASE, twice) == pytest.approx(math.exp(-0.2))
    assert measure_likeness(BASE, four) == pytest.approx(measure_likeness(BASE, twice) ** 2)
    assert measure_likeness(four, BASE) == measure_likeness(BASE, four)


def test_every_field_of_the_fingerprint_counts() -> None:
    others = {
        "kind": "command", "backend": "gloo", "device": "cpu", "device_name": "A100", "torch_version": "2.1",
        "gradient_bytes": 1e9, "layers": 10, "parameter_tensors": 9, "world_size": 64, "nodes": 8, "bits_per_s": 1e9,
    }  # fmt: skip
    assert others.keys() == vars(BASE).keys()
    for name, value in others.items():
        assert measure_likeness(BASE, replace(BASE, **{name: value})) < 1.0, name


def test_links_between_nodes_do_not_count_on_one_node() -> None:
    alone = replace(BASE, nodes=1)
    assert measure_likeness(alone, replace(alone, bits_per_s=1e9)) == 1.0


def test_size_that_only_one_job_knows_costs_a_doubling_and_one_that_none_knows_nothing() -> None:
    unknown = replace(BASE, gradient_bytes=None)
    assert measure_likeness(BASE, unknown) == pytest.approx(math.exp(-0.2))
    assert measure_likeness(unknown, unknown) == 1.0


def test_fingerprint_takes_the_slowest_node_and_a_testbeds_rate() -> None:
    links = (
        Link(name="a", address="", bits_per_second=10**9),
        Link(name="b", address="", bits_per_second=10**10),
    )
    fast = Node(hostname="n", cpu_count=4, memory_bytes=1, links=links)
    shaped = fast.model_copy(update={"testbed": Testbed(nodes=2, rate="300mbit")})
    job = mine(cluster=Cluster(nodes=(fast, fast)))
    found = take_fingerprint(job)
    assert found is not None
    assert found.bits_per_s == 10**10
    found = take_fingerprint(mine(cluster=Cluster(nodes=(fast, shaped))))
    assert found is not None
    assert found.bits_per_s == 3 * 10**8
    assert take_fingerprint(mine(facts=None)) is None


def test_most_alike_jobs_come_first_and_at_most_three() -> None:
    rows = [
        finished("far", {"amp": True}, gradient_bytes=2 * 40 * 2**20),
        finished("near", {"num_threads": 2}),
        finished("other", {"nccl_comm_num": 2}, gradient_bytes=1000 * 40 * 2**20),
        finished("kept", None),
        finished("third", {"fuse_grad_size_in_MB": 4.0}, gradient_bytes=60 * 2**20),
        finished("fourth", {"fuse_grad_size_in_MB": 8.0}, gradient_bytes=83 * 2**20),
    ]
    chosen = choose_earlier(mine(spec=make_spec(allow=Effect.CONVERGENCE)), rows)
    assert [earlier.job_id for earlier in chosen] == ["near", "third", "far"]
    assert chosen[0].likeness == 1.0
    assert chosen[0].changes == {"num_threads": 2}
    assert chosen == choose_earlier(mine(spec=make_spec(allow=Effect.CONVERGENCE)), rows[::-1])


def test_equal_strategies_are_told_once() -> None:
    rows = [finished("a", {"num_threads": 2}), finished("b", {"num_threads": 2}, layers=31)]
    assert [earlier.job_id for earlier in choose_earlier(mine(), rows)] == ["a"]


def test_job_that_verifies_one_strategy_is_told_no_others() -> None:
    row = finished("a", {"num_threads": 2})
    assert choose_earlier(mine(), [row])
    assert choose_earlier(mine(spec=make_spec(verify=row[1].changes)), [row]) == ()


def test_strategy_of_a_rung_that_is_not_allowed_gives_way_to_the_one_below() -> None:
    job, advice = finished("old", {"fp16_allreduce": True}, ratio=1.8)
    below = RungAdvice(
        effect=Effect.EXACT,
        changes={"num_threads": 2},
        gain=Interval(ratio=1.1, low=1.05, high=1.15, rounds=6, sessions=2),
        sentence="",
    )
    assert choose_earlier(mine(), [(job, advice)]) == ()
    row = (job, advice.model_copy(update={"ladder": (below,)}))
    (exact,) = choose_earlier(mine(), [row])
    assert (exact.changes, exact.ratio) == ({"num_threads": 2}, 1.05)
    (numeric,) = choose_earlier(mine(spec=make_spec(allow=Effect.NUMERIC)), [row])
    assert numeric.changes == {"fp16_allreduce": True}


def test_rung_that_the_guard_refused_is_never_told() -> None:
    job, advice = finished("old", None)
    refused = RungAdvice(
        effect=Effect.EXACT,
        changes={"num_threads": 2},
        gain=Interval(ratio=1.5, low=1.4, high=1.6, rounds=6, sessions=2),
        sentence="",
        admitted=False,
    )
    assert choose_earlier(mine(), [(job, advice.model_copy(update={"ladder": (refused,)}))]) == ()


def test_job_of_another_owner_is_told_in_numbers_only() -> None:
    own, foreign = finished("own", {"num_threads": 2}), finished("foreign", {"num_threads": 4}, owner="bob")
    chosen = {earlier.job_id: earlier.because for earlier in choose_earlier(mine(), [own, foreign])}
    assert "name-of-own" in chosen["own"]
    assert "name-of" not in chosen["foreign"]
    assert "40 MiB of gradients" in chosen["foreign"]


def test_phrase_says_what_differs() -> None:
    (earlier,) = choose_earlier(
        mine(), [finished("old", {"num_threads": 2}, layers=15, torch_version="2.1.0")]
    )
    assert "15 layers instead of 30 layers" in earlier.because
    assert "torch 2.1 there, torch 2.13 here" in earlier.because


def test_launches_are_learned_from_verdicts_on_the_same_nodes_alone() -> None:
    told = tuple(
        LaunchTold(baseline_samples_per_s=100.0, strategy_samples_per_s=110.0, log_ratio=ratio, error=0.003)
        for ratio in (0.09, 0.1)
    )
    job, advice = finished("a", None)
    raced = advice.model_copy(update={"launches": told})
    elsewhere = job.model_copy(update={"id": "b", "cluster": Cluster(nodes=())})

    (found,) = choose_earlier_launches(mine(), [(job, raced), (elsewhere, raced), (job, advice)])

    assert found.job_id == "a"
    assert found.ratios == ((0.09, 0.003), (0.1, 0.003))
