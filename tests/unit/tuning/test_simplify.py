"""Simplification: knobs that bring nothing go back, those that stay have their measured effect."""

import math
from collections.abc import Mapping

import pytest

from advisor.protocol.advice import Advice, Verdict
from advisor.protocol.base import Value
from advisor.protocol.jobs import Budget, Stage
from advisor.protocol.trials import BlockResult, BlockState, Outcome, Purpose
from advisor.tuning.contender import Contender
from advisor.tuning.decisions import Measure
from advisor.tuning.main_effects import estimate_main_effects
from advisor.tuning.record import Record
from advisor.tuning.search import SearchOver
from advisor.tuning.simplify import MOST_ROUNDS, ROUNDS, simplify
from advisor.tuning.space import build_space
from advisor.tuning.take_back import list_units, take_back

from .simulated_cluster import QUIET, Changes, Noise, SimulatedCluster, make_facts, make_job, make_spec

TOGETHER: dict[str, Value] = {
    "fuse_grad_size_in_MB": 4.0, "num_threads": 2, "nccl_comm_num": 2, "num_iteration_per_drop_scope": 30,
    "use_hierarchical_allreduce": True, "hierarchical_allreduce_inter_nranks": 2, "fuse_grad_size_in_TFLOPS": 5.0,
}  # fmt: skip
"""What a search may come to: many knobs at once, of which few matter."""


def two_matter(changes: Changes) -> float:
    speed = 1.10 if float(changes.get("fuse_grad_size_in_MB", 25.0)) < 8 else 1.0
    return speed * (1.06 if changes.get("num_threads", 1) == 2 else 1.0)


SEARCHED: list[dict[str, Value]] = [
    TOGETHER,
    {"fuse_grad_size_in_MB": 4.0},
    {"nccl_comm_num": 2, "num_iteration_per_drop_scope": 30},
    {"fuse_grad_size_in_MB": 4.0, "nccl_comm_num": 2},
    {"fuse_grad_size_in_TFLOPS": 5.0, "num_iteration_per_drop_scope": 30},
]


@pytest.fixture(autouse=True)
def searched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Value]]:
    """A search that tries what the test wants tried, whatever the sampler would like."""
    strategies = [dict(changes) for changes in SEARCHED]

    def next_strategy(record: Record, _space: object) -> Contender | SearchOver:
        tried = [t.changes for t in record.trials_for(Purpose.SEARCH)]
        for trial in record.trials_for(Purpose.SEARCH):
            if not record.has_failed(trial) and record.settled(trial) is None:
                return Contender(Purpose.SEARCH, trial.changes, trial.because)
        wanted = [changes for changes in strategies if changes not in tried]
        return Contender(Purpose.SEARCH, wanted[0], "As told.") if wanted else SearchOver("All is tried.")

    for module in ("planner", "advice"):
        monkeypatch.setattr(f"advisor.tuning.{module}.next_strategy", next_strategy)
    return strategies


def tune(
    speed=two_matter, noise: Noise = QUIET, seed: int = 0, max_seconds: float = 1e6, **fields: object
) -> SimulatedCluster:
    job = make_job(make_spec(budget=Budget(max_trials=16, max_seconds=max_seconds)))
    return SimulatedCluster(job, speed=speed, noise=noise, seed=seed, **fields)  # type: ignore[arg-type]


def composer():
    job = make_job()
    return build_space(job, make_facts(), ()).composer


def comparisons(sim: SimulatedCluster):
    done = simplify(Record(sim.job, sim.history, sim.now))
    assert done is not None
    return done.comparisons


def test_only_knobs_that_matter_are_left_and_each_has_its_effect() -> None:
    sim = tune()
    advice = sim.run()
    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE
    assert two_matter(advice.changes) == pytest.approx(1.166)
    assert advice.changes == {"fuse_grad_size_in_MB": 4.0, "num_threads": 2}
    effects = {reason.knob: reason.effect for reason in advice.reasons}
    step_s = sim.step_s / 1.166
    for knob, gain in (("fuse_grad_size_in_MB", 0.10), ("num_threads", 0.06)):
        effect = effects[knob]
        assert effect is not None
        # t (e^r - 1) with r = ln(1 + gain); 0.2 % noise of a step over 24 steps and at least four rounds.
        assert effect.saved_s == pytest.approx(step_s * gain, abs=0.2e-3)
        assert effect.low_s < effect.saved_s < effect.high_s
        assert effect.rounds >= ROUNDS


def test_the_confirmed_strategy_is_the_advised_one() -> None:
    sim = tune(noise=Noise(), seed=2)
    advice = sim.run()
    assert isinstance(advice, Advice)
    confirmed = [t.changes for t in sim.trials if t.purpose is Purpose.CONFIRM]
    assert advice.changes in confirmed
    order = [sim.trials[b.trial_number].purpose for b in sim.blocks]
    assert order.index(Purpose.REVERT) < order.index(Purpose.CONFIRM)
    assert Purpose.REVERT not in order[order.index(Purpose.CONFIRM) :]


def test_what_was_taken_back_is_told_with_its_interval() -> None:
    advice = tune().run()
    assert isinstance(advice, Advice)
    assert {reason.knob for reason in advice.taken_back} == TOGETHER.keys() - advice.changes.keys()
    for reason in advice.taken_back:
        assert reason.knob not in advice.changes
        assert reason.before != reason.after
        assert reason.sentence.startswith("Tried and taken back: ")
        assert "(95 % CI " in reason.sentence
        assert reason.effect is not None
        assert reason.effect.low_s < reason.effect.saved_s < reason.effect.high_s


def test_a_strategy_of_one_knob_is_explained_by_the_confirmation(searched: list[dict[str, Value]]) -> None:
    searched[:] = [{"fuse_grad_size_in_MB": 4.0}]
    sim = tune()
    advice = sim.run()
    assert isinstance(advice, Advice)
    assert not [t for t in sim.trials if t.purpose is Purpose.REVERT]
    (reason,) = advice.reasons
    assert reason.effect is not None
    assert advice.gain is not None
    assert reason.effect.rounds == advice.gain.rounds
    assert reason.effect.saved_s == pytest.approx(sim.step_s * (1 - 1 / 1.1), rel=0.05)
    assert "It saves 9." in reason.sentence


def test_a_knob_that_only_saves_stalls_stays(searched: list[dict[str, Value]]) -> None:
    def stall(changes: Changes, _session: object, result: BlockResult) -> BlockResult:
        if changes.get("num_iteration_per_drop_scope") == 30:
            return result
        times = tuple(t * (3.0 if i % 12 == 5 else 1.0) for i, t in enumerate(result.step_time_s))
        return result.model_copy(update={"step_time_s": times, "wall_s": sum(times)})

    searched[:] = [{"fuse_grad_size_in_MB": 4.0, "num_iteration_per_drop_scope": 30}]
    sim = tune(alter=stall)
    (first, *_) = [c for c in comparisons_of(sim) if "num_iteration_per_drop_scope" in c.knobs]
    assert not first.is_taken_back
    assert first.brings is not None
    # Two steps of 24 take three times as long without it: ln(1 + 4/24) of the total time.
    assert first.brings.mean == pytest.approx(math.log(1 + 4 / 24), abs=0.01)


def comparisons_of(sim: SimulatedCluster):
    sim.run()
    return comparisons(sim)


def test_each_comparison_takes_turns_in_balanced_order() -> None:
    sim = tune(noise=Noise(), seed=1)
    for comparison in comparisons_of(sim):
        assert len(comparison.pairs) in {ROUNDS, MOST_ROUNDS}
        firsts = [pair.baseline.issued_at < pair.strategy.issued_at for pair in comparison.pairs]
        assert firsts.count(True) == firsts.count(False)
        assert {pair.baseline.session_id for pair in comparison.pairs}
        assert all(pair.baseline.session_id == pair.strategy.session_id for pair in comparison.pairs)


def test_a_strategy_without_a_knob_that_fails_leaves_the_knob_in(searched: list[dict[str, Value]]) -> None:
    searched[:] = [{"fuse_grad_size_in_MB": 4.0, "num_iteration_per_drop_scope": 30}]

    def fault(_session: int, _ordinal: int, changes: Changes) -> Outcome | None:
        return Outcome.OUT_OF_MEMORY if set(changes) == {"fuse_grad_size_in_MB"} else None

    advice = tune(session_fault=fault).run()
    assert isinstance(advice, Advice)
    assert advice.changes == searched[0]
    told = {reason.knob: reason for reason in advice.reasons}
    assert told["num_iteration_per_drop_scope"].effect is None
    assert told["fuse_grad_size_in_MB"].effect is not None


def test_a_session_lost_in_the_middle_of_a_round_is_measured_again_as_a_whole() -> None:
    lost: list[int] = []

    def fault(session: int, _ordinal: int, _changes: Changes) -> Outcome | None:
        reverts = sum(sim.trials[b.trial_number].purpose is Purpose.REVERT for b in sim.blocks)
        if reverts == 4 and not lost:
            lost.append(session)
            return Outcome.LOST
        return None

    sim = tune(noise=Noise(), seed=1)
    sim.session_fault = fault
    advice = sim.run()
    assert lost
    assert isinstance(advice, Advice)
    for comparison in comparisons(sim):
        assert all(pair.baseline.session_id == pair.strategy.session_id for pair in comparison.pairs)


@pytest.mark.parametrize("max_seconds", [60, 90, 120, 200, 300])
def test_the_confirmations_share_is_never_eaten(max_seconds: float) -> None:
    sim = tune(noise=Noise(), seed=4, max_seconds=max_seconds)
    advice = sim.run()
    assert isinstance(advice, Advice)
    assert advice.cost.wall_s <= max_seconds * 1.05 + 2
    reverts = [b for b in sim.blocks if sim.trials[b.trial_number].purpose is Purpose.REVERT]
    if reverts:
        assert advice.gain is not None
        assert advice.gain.rounds >= 4


def test_the_stage_is_told_and_every_decision_says_why() -> None:
    sim = tune()
    sim.run()
    told = [
        d.because for d in sim.decisions if isinstance(d, Measure) and d.stage is Stage.SIMPLIFY and d.round
    ]
    assert told
    assert all(because.startswith("Simplifying: whether ") for because in told)


def test_cold_knobs_are_taken_back_across_launches(searched: list[dict[str, Value]]) -> None:
    searched[:] = [{"NCCL_SOCKET_NTHREADS": 4, "NCCL_NSOCKS_PERTHREAD": 2}]
    facts, spec = make_facts(backend="nccl"), make_spec(budget=Budget(max_trials=3, max_seconds=1e6))
    sim = SimulatedCluster(
        make_job(spec, facts=facts),
        speed=lambda changes: 1.2 if changes.get("NCCL_SOCKET_NTHREADS") == 4 else 1.0,
        noise=QUIET,
    )
    advice = sim.run()
    assert isinstance(advice, Advice)
    assert advice.changes == {"NCCL_SOCKET_NTHREADS": 4}
    sessions = {s.id: s for s in sim.sessions}
    for block in sim.blocks:
        if block.state is BlockState.DONE:
            assert block.plan.overrides == sessions[block.session_id].cold


# --- what can go back, and in which order -------------------------------------------------------------


def test_coupled_knobs_go_together() -> None:
    units = list_units(composer(), TOGETHER)
    assert ("use_hierarchical_allreduce", "hierarchical_allreduce_inter_nranks") in units
    assert ("nccl_comm_num",) in units
    assert sorted(name for unit in units for name in unit) == sorted(TOGETHER)


def test_a_value_that_another_knob_forces_goes_with_it() -> None:
    changes: Mapping[str, Value] = {
        "fuse_grad_size_in_MB": 0.5,
        "last_comm_group_size_MB": 0.5,
        "num_threads": 2,
    }
    assert list_units(composer(), changes) == [
        ("fuse_grad_size_in_MB", "last_comm_group_size_MB"),
        ("num_threads",),
    ]
    assert take_back(composer(), changes, ("last_comm_group_size_MB",)) is None
    assert take_back(composer(), changes, ("fuse_grad_size_in_MB", "last_comm_group_size_MB")) == {
        "num_threads": 2
    }


def test_knobs_that_force_each_other_are_one_group_even_when_there_are_no_others() -> None:
    changes: Mapping[str, Value] = {"fuse_grad_size_in_MB": 0.5, "last_comm_group_size_MB": 0.5}
    assert list_units(composer(), changes) == [("fuse_grad_size_in_MB", "last_comm_group_size_MB")]


def test_everything_taken_back_is_no_strategy() -> None:
    assert take_back(composer(), TOGETHER, tuple(TOGETHER)) is None


def test_the_search_tells_which_parts_matter() -> None:
    sim = tune()
    sim.run()
    record = Record(sim.job, sim.history, sim.now)
    changes: dict[str, Value] = {"fuse_grad_size_in_MB": 4.0, "num_threads": 2, "nccl_comm_num": 2}
    units = list_units(composer(), changes)
    effects = estimate_main_effects(record, changes, units)
    assert max(effects, key=lambda unit: effects[unit]) == ("fuse_grad_size_in_MB",)
    assert effects[("num_threads",)] > effects[("nccl_comm_num",)]
    assert effects[("fuse_grad_size_in_MB",)] < math.log(1.10) + 0.02
