"""How a block's result ends its trial."""

import pytest

from advisor.protocol.asked.jobs import Budget, Measurement
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Outcome, Purpose, Trial
from advisor.tuning.measure.outcomes import judge_block
from tests.unit.tuning.simulated_cluster import (
    START,
    Noise,
    SimulatedCluster,
    make_facts,
    make_job,
    make_spec,
)


def trial(purpose: Purpose = Purpose.SEARCH, changes: dict[str, Value] | None = None) -> Trial:
    wanted = {"fuse_grad_size_in_MB": 4.0} if changes is None else changes
    return Trial(number=1, purpose=purpose, changes=wanted, because="A test.", created_at=START)


def result(times: tuple[float, ...] = (0.1,) * 24, **fields: object) -> BlockResult:
    values = {"steps": len(times), "step_time_s": times, "samples_per_step": 32.0, "wall_s": sum(times)}
    return BlockResult(**{**values, **fields})


def test_a_steady_block_finishes_a_search_trial() -> None:
    judged = judge_block(trial(), result(), [])

    assert judged is not None
    assert judged[0] is Outcome.FINISHED


def test_a_knob_that_nothing_consumed_makes_the_trial_ineffective() -> None:
    judged = judge_block(
        trial(), result(not_consumed={"fuse_grad_size_in_MB": "The script has its own hook"}), []
    )

    assert judged is not None
    assert judged[0] is Outcome.INEFFECTIVE
    assert "own hook." in judged[1]


def losses(bad: int, of: int = 40) -> BlockResult:
    return result((0.1,) * of, nonfinite_losses=bad, diverged=bad > 0)


def test_losses_that_are_not_finite_where_the_baselines_are_make_it_diverged_in_every_purpose() -> None:
    for purpose in (Purpose.SEARCH, Purpose.CONFIRM):
        judged = judge_block(trial(purpose), losses(40), [losses(0)])
        assert judged is not None
        assert judged[0] is Outcome.DIVERGED


def test_finalists_and_the_baseline_stay_open() -> None:
    assert judge_block(trial(Purpose.CONFIRM), result(), []) is None
    assert judge_block(trial(Purpose.BASELINE, {}), result(nonfinite_losses=24, diverged=True), []) is None


def test_a_block_that_needs_a_relaunch_or_was_cut_short_decides_nothing() -> None:
    assert judge_block(trial(), result((), relaunch_needed="Other processes are needed."), []) is None
    assert judge_block(trial(), result((0.1,) * 6, script_ended=True), []) is None


def test_a_strategy_that_cannot_win_is_pruned_with_its_figures() -> None:
    judged = judge_block(trial(), result((0.25,) * 8, given_up=True), [])

    assert judged is not None
    assert judged[0] is Outcome.PRUNED
    assert "8 steps" in judged[1]
    assert "0.25 s" in judged[1]


def test_only_search_trials_are_given_up() -> None:
    assert judge_block(trial(Purpose.CONFIRM), result((0.25,) * 8, given_up=True), []) is None


def test_arms_that_are_one_plan_in_force_are_ineffective() -> None:
    judged = judge_block(trial(), result((), same_as="b7"), [])

    assert judged is not None
    assert judged[0] is Outcome.INEFFECTIVE
    assert "raced for both" in judged[1]


def test_a_race_whose_ranks_drifted_apart_decides_nothing() -> None:
    assert judge_block(trial(), result(drifted="Rank 1 differs.", diverged=True), []) is None


def test_an_arm_of_a_race_is_measured_even_where_the_script_ended_in_it() -> None:
    judged = judge_block(trial(), result((0.1,) * 8, segments=(4, 4), script_ended=True), [])

    assert judged is not None
    assert judged[0] is Outcome.FINISHED


def test_hopeless_strategies_take_few_steps_and_never_reach_the_verdict() -> None:
    def speed(changes: Changes) -> float:
        return 0.5 if changes.get("fuse_grad_size_in_MB") == 8.0 else 1.0

    spec = make_spec(
        knobs=("fuse_grad_size_in_MB", "num_threads"),
        values={"fuse_grad_size_in_MB": (4.0, 8.0), "num_threads": (2,)},
        budget=Budget(max_trials=8, max_seconds=400),
        measurement=Measurement(warmup_steps=2, min_steps=24, max_steps=24),
    )
    sim = SimulatedCluster(
        make_job(spec, facts=make_facts(gradient_bytes=0)),
        speed=speed,
        noise=Noise(step=0.01, drift=0.001, spikes=0.0),
    )

    sim.run()

    slow = [t for t in sim.trials if t.changes.get("fuse_grad_size_in_MB") == 8.0]
    assert slow, "nothing slow was tried"
    assert {(t.purpose, t.outcome) for t in slow} == {(Purpose.SEARCH, Outcome.PRUNED)}
    numbers = {t.number for t in slow}
    blocks = [b for b in sim.blocks if b.trial_number in numbers]
    assert all(b.result and b.result.steps < 24 for b in blocks)


@pytest.mark.parametrize("effect", list(Effect))
@pytest.mark.parametrize(
    ("bad", "own", "is_to_blame"),
    [
        (40, 40, False),  # the script's loss is not finite from its start
        (39, 40, False),
        (2, 1, False),  # one batch in 25, whatever arm meets it
        (1, 0, False),
        (25, 20, False),  # it stopped being finite in the middle of the race, for good
        (40, 1, True),
        (20, 0, True),
    ],
)
def test_a_strategy_has_diverged_only_with_more_losses_that_are_not_finite_than_the_baseline(
    effect: Effect, bad: int, own: int, is_to_blame: bool
) -> None:
    strategy = trial().model_copy(update={"effect": effect})

    judged = judge_block(strategy, losses(bad), [losses(own)])

    assert judged is not None
    assert judged[0] is (Outcome.DIVERGED if is_to_blame else Outcome.FINISHED)
