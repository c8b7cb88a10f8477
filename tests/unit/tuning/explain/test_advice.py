"""The advice: only confirmed numbers, every field explained."""

import math
from collections.abc import Callable

import pytest

from advisor.protocol.answers.advice import Advice, Provenance, Verdict
from advisor.protocol.asked.jobs import Budget
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import JobHistory, Purpose
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.protocol.nodes.testbed import Testbed
from advisor.tuning.explain.advice import build_advice
from tests.unit.tuning.simulated_cluster import QUIET, START, SimulatedCluster, make_job, make_spec

KNOBS = ("fuse_grad_size_in_MB", "fp16_allreduce", "num_threads")


def small_buckets(changes: Changes) -> float:
    return 1.15 if float(changes.get("fuse_grad_size_in_MB", 25.0)) < 8 else 1.0


def halved_bytes(changes: Changes) -> float:
    return small_buckets(changes) * (1.5 if changes.get("fp16_allreduce") else 1.0)


def advise(
    speed: Callable[[Changes], float] = small_buckets, **fields: object
) -> tuple[Advice, SimulatedCluster]:
    loss = fields.pop("loss", None)
    limits = {"knobs": KNOBS, "budget": Budget(max_trials=6, max_seconds=500)}
    sim = SimulatedCluster(make_job(make_spec(**{**limits, **fields})), speed=speed, noise=QUIET)
    if loss is not None:
        sim.loss = loss  # type: ignore[assignment]
    advice = sim.run()
    assert isinstance(advice, Advice)
    return advice, sim


@pytest.fixture(scope="module")
def gained() -> tuple[Advice, SimulatedCluster]:
    """Small buckets bring 15 %, and half the bytes 50 % more on a rung that is not allowed."""
    return advise(halved_bytes)


@pytest.fixture(scope="module")
def kept() -> tuple[Advice, SimulatedCluster]:
    """Nothing brings anything, on a testbed."""
    return advise(lambda _: 1.0, testbed=Testbed(nodes=2, rate="200mbit"))


def test_a_change_names_its_gain_reasons_and_cost(gained: tuple[Advice, SimulatedCluster]) -> None:
    advice, sim = gained

    assert advice.verdict is Verdict.CHANGE
    assert advice.gain is not None
    assert advice.gain.ratio == pytest.approx(1.15, abs=0.01)
    least = math.floor((advice.gain.low - 1) * 1000) / 10  # a bound is rounded down
    assert advice.headline.startswith(f"Faster: at least {least:+.1f} %")
    assert f"most likely {(advice.gain.ratio - 1) * 100:+.1f} % (95 % CI" in advice.headline
    assert advice.candidate == advice.changes
    assert set(advice.changes) == {reason.knob for reason in advice.reasons}
    reason = next(r for r in advice.reasons if r.knob == "fuse_grad_size_in_MB")
    assert reason.before == 25.0
    assert "buckets 5 → 3" in reason.sentence
    assert (
        "exposed communication 30.0 → " in reason.sentence or "exposed communication 29." in reason.sentence
    )
    assert reason.evidence == "in force"
    assert advice.buckets_before != advice.buckets_after
    assert advice.strategy_samples_per_s == pytest.approx(advice.baseline_samples_per_s * advice.gain.ratio)
    wall = sum(
        (s.ended_at - s.started_at).total_seconds() for s in sim.sessions if s.ended_at and s.started_at
    )
    assert advice.cost.wall_s == pytest.approx(wall)
    assert advice.cost.device_hours == pytest.approx(4 * wall / 3600)
    assert advice.cost.pays_back_after_s == pytest.approx(wall / (advice.gain.ratio - 1))


def test_the_smallest_strategy_wins_among_equals(gained: tuple[Advice, SimulatedCluster]) -> None:
    advice, _ = gained

    # Buckets below the first bucket's size bring that one along: it is at most as large as the others.
    forced = {"last_comm_group_size_MB"} if float(advice.changes["fuse_grad_size_in_MB"]) < 1 else set()
    assert advice.changes.keys() == {"fuse_grad_size_in_MB"} | forced


def test_no_gain_keeps_the_baseline(kept: tuple[Advice, SimulatedCluster]) -> None:
    advice, _ = kept

    assert advice.verdict is Verdict.KEEP
    assert advice.changes == {}
    assert advice.strategy["fuse_grad_size_in_MB"] == 25.0
    assert advice.headline.startswith("Keep your settings: the strategy that looked best, ")
    assert " brings less than 1 %: " in advice.headline
    assert advice.gain is not None
    assert advice.gain.high < 1.01
    assert advice.strategy_samples_per_s == advice.baseline_samples_per_s
    assert advice.cost.pays_back_after_s is None


def test_a_gain_below_the_smallest_worth_recommending_is_kept_back() -> None:
    advice, _ = advise(speed=lambda changes: 1.02 if small_buckets(changes) > 1 else 1.0, min_gain=0.05)

    assert advice.verdict is Verdict.KEEP


def test_every_knob_has_a_value_and_a_provenance(gained: tuple[Advice, SimulatedCluster]) -> None:
    advice, _ = gained

    assert set(advice.strategy) == set(advice.baseline) == set(advice.provenance) == set(CATALOGUE)
    assert advice.provenance["fuse_grad_size_in_MB"] is Provenance.MEASURED
    assert advice.provenance["nccl_comm_num"] is not Provenance.MEASURED
    assert advice.provenance["dgc"] is Provenance.CARRIED


def test_the_observed_baseline_is_shown_even_where_no_strategy_can_hold_it() -> None:
    spec = make_spec(knobs=("fuse_grad_size_in_MB",), budget=Budget(max_trials=3, max_seconds=200))
    sim = SimulatedCluster(
        make_job(spec, baseline={"fuse_grad_size_in_MB": 2000.0}), speed=small_buckets, noise=QUIET
    )

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.baseline["fuse_grad_size_in_MB"] == 2000.0
    assert advice.strategy["fuse_grad_size_in_MB"] != 2000.0


def test_higher_rungs_stay_on_the_ladder(gained: tuple[Advice, SimulatedCluster]) -> None:
    advice, _ = gained

    numeric = next(rung for rung in advice.ladder if rung.effect is Effect.NUMERIC)
    assert numeric.gain is not None
    assert numeric.gain.ratio > 1.4
    assert advice.gain is not None
    assert advice.gain.ratio < 1.2


def test_an_allowed_numeric_gain_with_unharmed_loss_is_advised() -> None:
    advice, _ = advise(speed=halved_bytes, allow=Effect.NUMERIC)

    assert advice.verdict is Verdict.CHANGE
    assert advice.changes["fp16_allreduce"] is True
    assert any("full training" in step for step in advice.next_steps)


def test_a_numeric_gain_that_harms_the_loss_falls_back_to_the_exact_rung() -> None:
    def loss(changes: Changes, step: int) -> float:
        return 2.5 - step / 10_000 + (0.5 if changes.get("fp16_allreduce") else 0.0)

    advice, _ = advise(speed=halved_bytes, allow=Effect.NUMERIC, loss=loss)

    assert "fp16_allreduce" not in advice.changes
    assert advice.verdict is Verdict.CHANGE
    assert advice.gain is not None
    assert advice.gain.ratio == pytest.approx(1.15, abs=0.02)
    numeric = next(rung for rung in advice.ladder if rung.effect is Effect.NUMERIC)
    assert "refuses it" in numeric.sentence


def test_an_empty_history_still_gives_an_honest_answer() -> None:
    advice = build_advice(make_job(facts=None, baseline={}), JobHistory(), START)

    assert advice.verdict is Verdict.UNDECIDED
    assert advice.gain is None
    assert advice.changes == {}


def test_more_threads_than_processors_are_told_until_fewer_were_measured(
    gained: tuple[Advice, SimulatedCluster],
) -> None:
    job = make_job()
    assert job.facts is not None
    cpus = min(node.cpu_count for node in job.cluster.nodes)
    facts = job.facts.model_copy(update={"cpu_threads": 2 * cpus, "device": DeviceKind.CPU})
    told = build_advice(job.model_copy(update={"facts": facts}), JobHistory(), START).watch
    assert any(f"× {2 * cpus} threads on" in sentence for sentence in told)

    few = facts.model_copy(update={"cpu_threads": 1})
    assert not build_advice(job.model_copy(update={"facts": few}), JobHistory(), START).watch
    _, sim = gained
    tried = build_advice(sim.job.model_copy(update={"facts": facts}), sim.history, sim.now)
    assert not any("threads each" in sentence for sentence in tried.watch)


def test_advice_survives_its_own_json(gained: tuple[Advice, SimulatedCluster]) -> None:
    advice, _ = gained

    assert Advice.model_validate_json(advice.model_dump_json()) == advice


def test_what_a_testbed_measured_is_never_told_without_saying_so(
    kept: tuple[Advice, SimulatedCluster],
) -> None:
    advice, _ = kept

    assert "on a testbed on one machine, links shaped to 200mbit" in advice.headline + advice.what_to_do
    assert "Tune on your own nodes" in advice.next_steps[0]


def test_what_is_surely_slower_is_not_confirmed_and_the_answer_says_how_much() -> None:
    advice, sim = advise(lambda changes: 0.95 if changes else 1.0)

    assert advice.verdict is Verdict.KEEP
    assert not [t for t in sim.trials if t.purpose in {Purpose.CONFIRM, Purpose.REVERT}]
    assert advice.headline.startswith("Keep your settings: nothing that was tried is faster. The best, ")
    assert "−5." in advice.headline or "−4." in advice.headline
    assert advice.headline.endswith("in the search.")
    assert advice.gain is None


def test_what_the_script_has_is_told_as_it_is_where_no_strategy_can_hold_it() -> None:
    job = make_job(make_spec(knobs=("fuse_grad_size_in_MB",), budget=Budget(max_trials=6, max_seconds=500)))
    sim = SimulatedCluster(job, speed=lambda changes: 1.3 if changes else 1.0, noise=QUIET)
    sim.job = sim.job.model_copy(update={"baseline": {**sim.job.baseline, "fuse_grad_size_in_MB": 0.02}})
    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.baseline["fuse_grad_size_in_MB"] == 0.02
    [reason] = [r for r in advice.reasons if r.knob == "fuse_grad_size_in_MB"]
    assert reason.before == 0.02
    assert " 0.02 → " in reason.sentence
