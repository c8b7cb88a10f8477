"""The paired test of the losses that a numeric or convergence strategy has to pass."""

from collections.abc import Callable
from statistics import fmean

import pytest

from advisor.protocol.base import Value
from advisor.protocol.jobs import Budget
from advisor.protocol.knobs import Effect
from advisor.protocol.trials import Purpose
from advisor.protocol.workload import Workload, WorkloadKind
from advisor.tuning.confirmation import confirm
from advisor.tuning.guard import GuardFinding, check_losses
from advisor.tuning.losses import contrast_losses, list_blocks
from advisor.tuning.record import Record

from .simulated_cluster import QUIET, Changes, SimulatedCluster, make_job, make_spec
from .trainings import LOCAL, Training

HALF: dict[str, Value] = {"fp16_allreduce": True}


def check(loss: Callable[[Changes, int], float], allow: Effect = Effect.NUMERIC) -> GuardFinding:
    spec = make_spec(allow=allow, budget=Budget(max_trials=12, max_seconds=1e6))
    fast = "localsgd" if allow is Effect.CONVERGENCE else "fp16_allreduce"
    sim = SimulatedCluster(
        make_job(spec),
        speed=lambda changes: 1.5 if changes.get(fast) else 1.0,
        noise=QUIET,
        loss=loss,
    )
    sim.run()
    record = Record(sim.job, sim.history, sim.now)
    winner = next(t for t in record.trials_for(Purpose.CONFIRM) if t.effect is allow)
    return check_losses(record, winner.effect, confirm(record, winner).pairs)


def judge(training: Training) -> GuardFinding:
    record = training.record
    trial = training.trials[1]
    return check_losses(record, trial.effect, confirm(record, trial).pairs)


def falling(_: Changes, step: int) -> float:
    return 2.0 - step / 10_000


def test_an_equal_loss_passes_for_a_strategy_that_must_prove_it() -> None:
    assert check(falling, allow=Effect.CONVERGENCE).passed


def test_rounding_is_refused_only_when_harm_is_shown() -> None:
    undecided = GuardFinding(False, "Too noisy.")
    assert undecided.admits(Effect.NUMERIC)
    assert not undecided.admits(Effect.CONVERGENCE)
    assert not GuardFinding(False, "Worse.", harmed=True).admits(Effect.NUMERIC)
    assert not check(falling).harmed


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda changes, step: falling(changes, step) + 0.4 * changes.get("fp16_allreduce", 0), "refuses it"),
        (lambda _changes, _step: 1.0, "did not fall"),
    ],
)
def test_a_worse_or_unreadable_loss_does_not(loss: Callable[[Changes, int], float], words: str) -> None:
    finding = check(loss)

    assert not finding.passed
    assert words in finding.sentence


def test_exact_strategies_need_no_proof() -> None:
    assert check(lambda _changes, _step: 1.0, allow=Effect.EXACT).passed


@pytest.mark.parametrize("changes", [LOCAL, HALF])
def test_a_block_is_compared_with_training_from_its_own_state(changes: dict[str, Value]) -> None:
    # In half of the rounds the baseline's block comes first and is not undone: compared within the round, a strategy
    # would be ahead by what the baseline learned in it, in half of them.
    training = Training(changes, noise=0.0).confirm(8)

    contrast = contrast_losses(training.record, list_blocks(training.record, changes))

    assert contrast is not None
    assert contrast.difference == pytest.approx(0.0, abs=1e-12)
    # Rounds that meet at the same state share their baseline block: eight rounds in two launches are four pairs.
    assert [len(pair.strategies) for pair in contrast.pairs] == [2, 2, 2, 2]


def test_the_difference_is_what_the_strategy_fails_to_learn() -> None:
    training = Training(efficiency=0.9, noise=0.0).confirm(8)

    contrast = contrast_losses(training.record, list_blocks(training.record, LOCAL))

    assert contrast is not None
    # The later half of 48 steps behind 6 of warm-up has its middle at step 42.
    assert contrast.fall == pytest.approx(0.004 * 42)
    assert contrast.difference == pytest.approx(0.1 * 0.004 * 42)


def test_the_interval_of_the_difference_covers_the_truth() -> None:
    errors = []
    for seed in range(200):
        training = Training(efficiency=0.9, seed=seed).confirm(8)
        contrast = contrast_losses(training.record, list_blocks(training.record, LOCAL))
        assert contrast is not None
        # t with 3 degrees of freedom: 3.182 is its 97.5 % quantile.
        errors.append(abs(contrast.difference - 0.1 * 0.004 * 42) <= 3.182 * contrast.error)
    # 95 % of 200, give or take three binomial standard errors (1.5 %).
    assert 0.905 <= fmean(errors) <= 0.995


def test_a_strategy_that_loses_more_than_is_tolerated_passes_rarely() -> None:
    # The tolerated quarter of what is learned in a pair is lost exactly: the level of one look is 0.9 %.
    job = make_job(make_spec(allow=Effect.CONVERGENCE, loss_tolerance=0.9))
    passed = [judge(Training(efficiency=0.75, seed=seed, job=job).confirm(8)).passed for seed in range(300)]

    # Binomial with p = 0.009 and n = 300: more than 8 in one case of 500.
    assert sum(passed) <= 8


def test_a_strategy_that_learns_nothing_is_never_admitted_where_little_is_learned() -> None:
    # The job's loss has fallen far, and two per cent of that is more than a whole block learns.
    job = make_job(make_spec(allow=Effect.CONVERGENCE, loss_tolerance=0.5))
    for seed in range(20):
        finding = judge(Training(efficiency=0.0, noise=0.001, slope=0.0008, seed=seed, job=job).confirm(8))
        assert not finding.passed


def test_an_undecided_guard_says_what_it_could_not_have_seen() -> None:
    finding = judge(Training(noise=0.2, slope=0.01).confirm(8))

    assert not finding.passed
    assert not finding.harmed
    assert "could not decide" in finding.sentence
    assert "could hardly have been seen in 4 comparisons" in finding.sentence


def test_harm_beyond_doubt_is_told_apart_from_doubt() -> None:
    finding = judge(Training(HALF, efficiency=0.2, noise=0.01).confirm(8))

    assert finding.harmed
    assert "refuses it" in finding.sentence


def test_too_few_comparisons_are_said_to_be_too_few() -> None:
    assert "(1 comparison from" in judge(Training().confirm(2)).sentence


def test_programs_that_take_knobs_at_launch_are_compared_round_by_round_from_the_start() -> None:
    command = Workload(kind=WorkloadKind.COMMAND, command=("train", "--half", "${fp16_allreduce}"))
    job = make_job(make_spec(allow=Effect.NUMERIC, workload=command))
    training = Training(HALF, efficiency=0.5, noise=0.0, job=job)
    for round_ in range(1, 5):
        for trial in (0, 1) if round_ % 2 else (1, 0):
            training.launch()
            training.measure(trial, round_)

    contrast = contrast_losses(training.record, list_blocks(training.record, HALF))

    assert contrast is not None
    assert [pair.reference.round for pair in contrast.pairs] == [1, 2, 3, 4]
    assert contrast.difference == pytest.approx(0.5 * 0.004 * 42)


def test_a_strategy_in_a_launch_of_its_own_is_compared_with_the_first_block_of_another() -> None:
    changes: dict[str, Value] = {**HALF, "NCCL_BUFFSIZE": 8 * 2**20}
    training = Training(changes, efficiency=0.5, noise=0.0)
    for round_ in range(1, 5):
        for trial in (0, 1) if round_ % 2 else (1, 0):
            training.launch()
            training.measure(trial)
            training.measure(trial, round_)

    contrast = contrast_losses(training.record, list_blocks(training.record, changes))

    assert contrast is not None
    # Only the lead-in of a launch of the baseline has the state that the strategy starts from, time and again.
    assert {pair.reference.ordinal for pair in contrast.pairs} == {0}
    assert contrast.difference == pytest.approx(0.5 * 0.004 * 42)
