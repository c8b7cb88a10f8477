"""Jobs whose program takes its knobs when it starts: every block has a launch of its own, and the statistics hold."""

from itertools import groupby, pairwise

import pytest

from advisor.protocol.answers.advice import Advice, Provenance, Verdict
from advisor.protocol.asked.jobs import Budget
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Outcome, Purpose
from advisor.protocol.training.workload import Workload, WorkloadFacts, WorkloadKind
from advisor.tuning.history.breakoffs import find_script_failure
from advisor.tuning.history.record import Record
from advisor.tuning.space.space import build_space
from tests.unit.tuning.simulated_cluster import Noise, SimulatedCluster, make_facts, make_job, make_spec

COMMAND = Workload(
    kind=WorkloadKind.COMMAND,
    command=("train", "--bucket", "${fuse_grad_size_in_MB:-25}", "--half", "${fp16_allreduce}"),
    knobs={"num_threads": 2},
)
NOISE = Noise(step=0.02, session=0.005, launch=0.003, drift=0.001, spikes=0.0)


def simulate(speed, workload=COMMAND, facts: WorkloadFacts | None = None, **fields) -> SimulatedCluster:
    fields.setdefault("budget", Budget(max_trials=10, max_seconds=100_000))
    job = make_job(make_spec(workload=workload, **fields), baseline={"fuse_grad_size_in_MB": 25.0, "num_threads": 2},
                   **({"facts": facts} if facts else {}))  # fmt: skip
    return SimulatedCluster(job, speed=speed, noise=NOISE, seed=3)


def speed_of(changes) -> float:
    return 1.2 if changes.get("fuse_grad_size_in_MB", 25.0) < 10 else 1.0


@pytest.fixture(scope="module")
def found() -> tuple[SimulatedCluster, Advice]:
    """A job whose small buckets bring 20 %."""
    cluster = simulate(speed_of)
    advice = cluster.run()
    assert isinstance(advice, Advice)
    return cluster, advice


def test_every_strategy_has_a_launch_of_its_own(found) -> None:
    cluster, advice = found
    sessions = {session.id: session for session in cluster.sessions}
    assert len({block.session_id for block in cluster.blocks}) == len(cluster.blocks)
    assert all(sessions[block.session_id].cold == block.plan.overrides for block in cluster.blocks)
    assert advice.verdict is Verdict.CHANGE
    assert advice.changes["fuse_grad_size_in_MB"] < 10
    assert advice.gain is not None
    assert advice.gain.low < 1.2 < advice.gain.high * 1.02
    assert {advice.provenance[name] for name in advice.changes} == {Provenance.MEASURED}


def test_what_brings_nothing_beside_another_change_is_not_advised() -> None:
    # Either of them suffices, as a placement by bytes and smaller blocks do: both together are no faster.
    def speed(changes: Changes) -> float:
        is_even = changes.get("fuse_grad_size_in_MB", 25.0) < 10 or changes.get("num_threads", 2) != 2
        return 1.7 if is_even else 1.0

    advice = simulate(speed).run()
    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE
    assert len(advice.changes) == 1


def test_a_race_over_launches_holds_both_strategies_in_alternating_order(found) -> None:
    cluster, _ = found
    confirmed = {t.number for t in cluster.trials if t.purpose is Purpose.CONFIRM}
    pairs: dict[int, list[bool]] = {}
    for block in cluster.blocks:
        if block.trial_number in confirmed:
            pairs.setdefault(block.race, []).append(bool(block.plan.overrides))
    assert len(pairs) >= 2
    assert all(sorted(order) == [False, True] for order in pairs.values())
    firsts = [order[0] for order in pairs.values()]
    assert all(first != following for first, following in pairwise(firsts))


def test_the_baseline_returns_between_strategies_to_see_drift() -> None:
    cluster = simulate(lambda _: 1.0, budget=Budget(max_trials=14, max_seconds=2000))
    advice = cluster.run()
    assert isinstance(advice, Advice)
    assert advice.verdict is not Verdict.CHANGE
    confirmed = {t.number for t in cluster.trials if t.purpose is Purpose.CONFIRM}
    search = [not b.plan.overrides for b in cluster.blocks if b.trial_number not in confirmed]
    longest = max(len(list(run)) for is_anchor, run in groupby(search) if not is_anchor)
    assert longest <= 4


def test_only_knobs_that_the_command_takes_are_searched() -> None:
    job = simulate(speed_of).job
    space = build_space(job, make_facts(), ())
    assert {d.knob.name for d in space.dimensions} == {"fuse_grad_size_in_MB", "num_threads"}
    assert {d.knob.name for d in space.higher} == {"fp16_allreduce"}
    assert not space.costly
    reasons = {dropped.knob: dropped.reason for dropped in space.dropped}
    assert "neither a ${…} in it nor --reads" in reasons["nccl_comm_num"]
    # What Fleet would complete a small bucket with is not this command's to take.
    assert space.composer.compose({"fuse_grad_size_in_MB": 0.5}) == {"fuse_grad_size_in_MB": 0.5}


def test_an_unknown_size_of_the_gradients_leaves_the_whole_range() -> None:
    facts = make_facts(gradient_bytes=0, parameter_tensors=0, world_size=1, local_world_size=1, nodes=1)
    space = build_space(simulate(speed_of, facts=facts).job, facts, ())
    sizes = next(d.values for d in space.dimensions if d.knob.name == "fuse_grad_size_in_MB")
    assert min(sizes) <= 0.1
    assert max(sizes) == 1024
    assert 25 in sizes


def test_losses_of_launches_are_compared_from_the_start() -> None:
    budget = Budget(max_trials=10, max_seconds=3000)
    cluster = simulate(lambda c: 1.5 if c.get("fp16_allreduce") else 1.0, allow=Effect.NUMERIC, budget=budget)
    # Each launch trains from the start, so a longer block has seen lower losses.
    cluster.loss = lambda changes, step: 2.0 - 0.01 * (step % 1000)
    advice = cluster.run()
    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE
    assert advice.changes.get("fp16_allreduce") is True


@pytest.mark.parametrize("seconds", [420, 1200])
def test_launches_of_slow_steps_last_until_their_losses_can_be_compared(seconds: int) -> None:
    # Four steps of 0.6 s would tell the speed; nothing is learned in four.
    budget = Budget(max_trials=4, max_seconds=seconds)
    cluster = simulate(lambda c: 1.5 if c.get("fp16_allreduce") else 1.0, allow=Effect.NUMERIC, budget=budget)
    cluster.step_s = 0.6
    cluster.loss = lambda changes, step: 2.0 - 0.01 * (step % 1000)
    advice = cluster.run()
    assert isinstance(advice, Advice)
    confirmed = {t.number for t in cluster.trials if t.purpose is Purpose.CONFIRM}
    lengths = {b.result.steps for b in cluster.blocks if b.trial_number in confirmed and b.result}
    assert min(lengths) > 30
    assert advice.cost.wall_s <= seconds
    assert "too few losses" not in advice.headline


def test_a_strategy_that_fails_its_launch_is_not_tried_again() -> None:
    cluster = simulate(speed_of)
    cluster.launch_fault = lambda _, cold: Outcome.CRASHED if cold.get("num_threads", 0) > 2 else None
    advice = cluster.run()
    assert isinstance(advice, Advice)
    fatal = [tuple(sorted(s.cold.items())) for s in cluster.sessions if s.outcome is Outcome.CRASHED]
    assert len(fatal) == len(set(fatal))
    assert "num_threads" not in advice.changes


def test_a_small_budget_is_kept_with_the_launches_counted() -> None:
    cluster = simulate(speed_of, budget=Budget(max_trials=24, max_seconds=400))
    advice = cluster.run()
    assert isinstance(advice, Advice)
    assert advice.cost.wall_s <= 400 + 30
    assert advice.gain is not None


def test_paddle_takes_whole_megabytes_of_what_its_dynamic_graph_reads() -> None:
    workload = Workload(
        kind=WorkloadKind.PADDLE, command=("python", "-m", "paddle.distributed.launch", "train.py")
    )
    space = build_space(simulate(speed_of, workload=workload).job, make_facts(), ())
    values = {d.knob.name: d.values for d in space.dimensions}
    assert set(values) == {"fuse_grad_size_in_MB", "last_comm_group_size_MB"}
    assert all(float(size).is_integer() for size in values["fuse_grad_size_in_MB"])
    reasons = {dropped.knob: dropped.reason for dropped in space.dropped}
    assert "dynamic graph does not act on it" in reasons["localsgd"]


def test_one_launch_of_the_baseline_that_begins_too_late_is_not_the_scripts() -> None:
    cluster = simulate(speed_of)
    late: list[int] = []

    def begin_late(index: int, cold: Changes) -> Outcome | None:
        if cold or late or len(cluster.sessions) < 3:
            return None
        late.append(index)
        return Outcome.HUNG

    cluster.launch_fault = begin_late
    advice = cluster.run()

    assert late
    assert isinstance(advice, Advice)
    assert find_script_failure(Record(cluster.job, cluster.history, cluster.now)) is None
