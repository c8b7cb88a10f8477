"""The paired test of the losses that a numeric or convergence strategy has to pass."""

import math
from dataclasses import replace
from statistics import fmean, stdev

import pytest

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Purpose
from advisor.protocol.training.workload import Workload, WorkloadKind
from advisor.tuning.decisions import BASELINE, Candidate
from advisor.tuning.history.losses import LossPair, contrast_losses, list_blocks, pool_pairs
from advisor.tuning.measure.levels import find_level
from advisor.tuning.stages.confirmation import confirm
from advisor.tuning.stages.loss_guard import GuardFinding, check_losses, judge_contrast
from advisor.tuning.stages.turns import verdict_rules
from tests.unit.tuning.simulated_cluster import make_job, make_spec
from tests.unit.tuning.trainings import LOCAL, MIDDLE, SIZE, Training

HALF: dict[str, Value] = {"fp16_allreduce": True}


def judge(training: Training) -> GuardFinding:
    record, trial = training.record, training.trials[1]
    verdict = confirm(record, trial.changes, forced=True)
    return check_losses(record, trial.effect, [c.strategy for c in verdict.comparisons], verdict.guard_level)


def in_the_middle(**fields: object) -> Training:
    """A training that the command resumes from a checkpoint in its middle."""
    job = make_job(make_spec(allow=Effect.CONVERGENCE, from_checkpoint=True, loss_tolerance=0.9))
    return Training(job=job, **fields)  # type: ignore[arg-type]


def test_an_equal_loss_passes_from_the_middle_of_a_training() -> None:
    finding = judge(in_the_middle(noise=0.002).confirm())

    assert finding.passed
    assert "The loss guard passed" in finding.sentence


def test_an_equal_loss_at_the_start_of_a_training_proves_nothing_of_a_longer_interval() -> None:
    job = make_job(make_spec(allow=Effect.CONVERGENCE, loss_tolerance=0.9))
    finding = judge(Training(noise=0.002, job=job).confirm())

    assert not finding.passed
    assert not finding.harmed
    assert "the accuracy is not verified" in finding.sentence
    assert "--from-checkpoint" in finding.sentence


def test_rounding_is_not_asked_for_a_checkpoint() -> None:
    job = make_job(make_spec(allow=Effect.NUMERIC, loss_tolerance=0.9))

    assert judge(Training(HALF, noise=0.002, job=job).confirm()).passed


def test_rounding_is_refused_only_when_harm_is_shown() -> None:
    undecided = GuardFinding(False, "Too noisy.")
    assert undecided.admits(Effect.NUMERIC)
    assert not undecided.admits(Effect.CONVERGENCE)
    assert not GuardFinding(False, "Worse.", harmed=True).admits(Effect.NUMERIC)


def test_a_loss_that_does_not_fall_cannot_be_judged() -> None:
    finding = judge(in_the_middle(slope=0.0).confirm())

    assert not finding.passed
    assert "did not fall" in finding.sentence


def test_exact_strategies_need_no_proof() -> None:
    assert judge(Training({"fuse_grad_size_in_MB": 4.0}, slope=0.0).confirm()).passed


@pytest.mark.parametrize("changes", [LOCAL, HALF])
def test_segments_of_a_cycle_are_pairs_from_one_state(changes: dict[str, Value]) -> None:
    training = Training(changes, noise=0.0).confirm(2, cycles=3)

    contrast = contrast_losses(training.record, list_blocks(training.record, changes))

    assert contrast is not None
    assert contrast.difference == pytest.approx(0.0, abs=1e-12)
    assert len(contrast.pairs) == 6


def test_the_difference_is_what_the_strategy_fails_to_learn() -> None:
    training = Training(efficiency=0.9, noise=0.0).confirm()

    contrast = contrast_losses(training.record, list_blocks(training.record, LOCAL))

    assert contrast is not None
    assert contrast.fall == pytest.approx(0.004 * MIDDLE)
    assert contrast.difference == pytest.approx(0.1 * 0.004 * MIDDLE)


def test_a_check_on_the_same_batches_takes_off_what_batches_differ_by() -> None:
    training = Training(efficiency=0.9, noise=0.0, checked=16).confirm()

    contrast = contrast_losses(training.record, list_blocks(training.record, LOCAL))

    assert contrast is not None
    assert len(contrast.pairs) == 8
    assert contrast.fall == pytest.approx(0.004 * SIZE)
    assert contrast.difference == pytest.approx(0.1 * 0.004 * SIZE)
    assert max(pair.error for pair in contrast.pairs) < 1e-12


def test_batches_that_all_pairs_share_stay_in_the_error_however_many_pairs_there_are() -> None:
    for launches in (1, 2, 8):
        training = Training(noise=0.001, checked=16, uneven=0.04).confirm(launches)
        contrast = contrast_losses(training.record, list_blocks(training.record, LOCAL))
        assert contrast is not None
        # The spread of 16 batches tells their standard deviation within 3 · 18 %.
        assert contrast.error == pytest.approx(0.04 / 16**0.5, rel=0.55)
        # Where pairs agree the batches tell the error, and there are 16 of them.
        assert 13 <= contrast.freedom <= 15


def test_where_a_quarter_of_the_learning_is_the_limit_its_own_error_counts() -> None:
    """A reference that learned more by chance leaves a larger difference and a larger limit."""
    luck = (-0.02, 0.0, 0.02, 0.04)
    pairs = [LossPair(0.1 + by, 0.0, 0.4 + by, 0.0, 3.0, 24) for by in luck]
    contrast = pool_pairs(pairs)

    assert contrast.error == pytest.approx(stdev(luck) / 2.0)
    assert contrast.error_beyond(1.0)[0] == pytest.approx(0.0, abs=1e-12)
    assert contrast.error_beyond(0.25) == (pytest.approx(0.75 * contrast.error), 3)


def test_one_launch_is_not_read() -> None:
    finding = judge(in_the_middle(noise=0.002).confirm(1))

    assert (finding.passed, finding.harmed, finding.is_open) == (False, False, True)
    assert "from the second launch on" in finding.sentence


def test_each_launch_checks_other_batches() -> None:
    training, local = in_the_middle().confirm(1), Candidate(Purpose.CONFIRM, Changes(LOCAL), "A test.")
    rules = verdict_rules(training.record, (BASELINE, local), 600.0)
    assert (rules.loss_check_steps, rules.loss_check_offset) == (12, 0)

    plans = [block.plan.model_copy(update={"rules": rules}) for block in training.blocks]
    training.blocks = [b.model_copy(update={"plan": p}) for b, p in zip(training.blocks, plans, strict=True)]

    assert verdict_rules(training.record, (BASELINE, local), 600.0).loss_check_offset == 12 + 2
    assert verdict_rules(training.record, (BASELINE, BASELINE), 600.0).loss_check_offset == 0


def test_readings_share_what_may_pass_by_chance() -> None:
    """At the limit, read after each of seven launches as long as it neither passes nor is refused."""
    passed = 0
    for seed in range(150):
        training = in_the_middle(efficiency=0.75, checked=8, noise=0.02, seed=seed)
        pairs: list[LossPair] = []
        for count in range(1, 8):
            contrast = contrast_losses(training.confirm(1, cycles=2).record, training.blocks[-1:])
            assert contrast is not None
            pairs += contrast.pairs
            level = find_level(count, 7, forced=False)
            if level and judge_contrast(pool_pairs(pairs), 0.9, math.inf, level).passed:
                passed += 1
                break
    # Binomial with p = 0.025 and n = 150: more than 11 in one case of 1,000; 2.5 % a reading would be 12 on average.
    assert passed <= 11


def test_passing_says_what_was_shown() -> None:
    sentence = judge(in_the_middle(noise=0.002).confirm()).sentence

    assert "after 24 steps from the same state" in sentence
    assert "is tolerated, a quarter of what the baseline learned meanwhile)" in sentence
    assert "on these batches, from this state and over so many steps" in sentence


def test_where_some_races_were_checked_only_those_count() -> None:
    training = Training(efficiency=0.9, noise=0.0).confirm(2)
    training.checked = 16
    training.confirm(1)

    contrast = contrast_losses(training.record, list_blocks(training.record, LOCAL))

    assert contrast is not None
    assert len(contrast.pairs) == 4
    assert contrast.difference == pytest.approx(0.1 * 0.004 * SIZE)


def test_a_check_shows_harm_and_harmlessness_far_below_what_batches_differ_by() -> None:
    harmed, harmless = (
        judge(in_the_middle(efficiency=e, noise=0.005, checked=16).confirm()) for e in (0.5, 1.0)
    )

    assert harmed.harmed
    assert harmless.passed


def test_the_interval_of_the_difference_covers_the_truth() -> None:
    held = []
    for seed in range(200):
        training = Training(efficiency=0.9, seed=seed).confirm(2, cycles=2)
        contrast = contrast_losses(training.record, list_blocks(training.record, LOCAL))
        assert contrast is not None
        assert contrast.freedom == 3
        # t with 3 degrees of freedom: 3.182 is its 97.5 % quantile.
        held.append(abs(contrast.difference - 0.1 * 0.004 * MIDDLE) <= 3.182 * contrast.error)
    # 95 % of 200, give or take three binomial standard errors (1.5 %).
    assert 0.905 <= fmean(held) <= 0.995


def test_a_strategy_that_loses_more_than_is_tolerated_passes_rarely() -> None:
    # The tolerated quarter of what is learned in a pair is lost exactly: the level of the test is 2.5 %.
    passed = [
        judge(in_the_middle(efficiency=0.75, seed=seed).confirm(2, cycles=2)).passed for seed in range(200)
    ]

    # Binomial with p = 0.025 and n = 200: more than 13 in one case of 1,000.
    assert sum(passed) <= 13


def test_a_strategy_that_learns_nothing_is_never_admitted_where_little_is_learned() -> None:
    for seed in range(20):
        training = in_the_middle(efficiency=0.0, noise=0.001, slope=0.0008, seed=seed)
        assert not judge(training.confirm()).passed


def test_an_undecided_guard_says_what_it_could_not_have_seen() -> None:
    finding = judge(in_the_middle(noise=0.2, slope=0.02, efficiency=0.9).confirm(2, cycles=2))

    assert not finding.passed
    assert not finding.harmed
    assert "could not decide" in finding.sentence
    assert "could hardly have been seen in 4 comparisons" in finding.sentence


def test_harm_beyond_doubt_is_told_apart_from_doubt() -> None:
    finding = judge(Training(HALF, efficiency=0.2, noise=0.01).confirm())

    assert finding.harmed
    assert "refuses it" in finding.sentence


def test_too_few_comparisons_are_said_to_be_too_few() -> None:
    assert "(1 comparison from" in judge(Training().confirm(1, cycles=1)).sentence


def test_programs_that_take_knobs_at_launch_are_compared_race_by_race_from_the_start() -> None:
    command = Workload(kind=WorkloadKind.COMMAND, command=("train", "--half", "${fp16_allreduce}"))
    job = make_job(make_spec(allow=Effect.NUMERIC, workload=command))
    training = Training(HALF, efficiency=0.5, noise=0.0, job=job)
    for number in range(1, 5):
        for trial in (0, 1) if number % 2 else (1, 0):
            training.launch()
            training.race(trial, cycles=1, number=number)

    contrast = contrast_losses(training.record, list_blocks(training.record, HALF))

    assert contrast is not None
    assert len(contrast.pairs) == 4
    assert contrast.difference == pytest.approx(0.5 * 0.004 * MIDDLE)


def test_blocks_behind_the_first_of_their_launches_are_not_from_one_state() -> None:
    training = Training(HALF, noise=0.0)
    for trial in (0, 1):
        training.launch()
        training.race(0, cycles=1)
        training.race(trial, cycles=1, number=9)

    assert contrast_losses(training.record, list_blocks(training.record, HALF)) is None


@pytest.mark.parametrize(
    ("checkpoint", "noise", "is_open"), [(True, 0.2, True), (False, 0.2, False), (False, 0.002, False)]
)
def test_a_guard_that_no_race_could_make_pass_is_closed(
    checkpoint: bool, noise: float, is_open: bool
) -> None:
    job = make_job(make_spec(allow=Effect.CONVERGENCE, from_checkpoint=checkpoint, loss_tolerance=0.9))
    finding = judge(Training(noise=noise, slope=0.02, efficiency=0.9, job=job).confirm(2, cycles=2))

    assert not finding.passed
    assert finding.is_open is is_open


def test_a_guard_without_losses_is_closed() -> None:
    training = in_the_middle().confirm()
    training.blocks = [
        b.model_copy(update={"result": replace(b.result, losses=())}) for b in training.blocks if b.result
    ]
    finding = judge(training)

    assert not finding.passed
    assert not finding.is_open
    assert "(0 comparisons from" in finding.sentence


def test_launches_from_one_start_are_no_surer_of_batches_than_one_of_them() -> None:
    one = LossPair(0.01, 0.02, 0.05, 0.03, 1.0, 100, is_from_start=True)
    for count in (1, 2, 8):
        contrast = pool_pairs([one] * count)
        assert contrast.error == pytest.approx(0.02)
        assert contrast.fall_error == pytest.approx(0.03)
        assert not contrast.learned
    # Those of other batches are, and their own spread tells.
    assert pool_pairs([replace(one, is_from_start=False)] * 8).error == 0.0
