"""A job as a study of Optuna: whole trials, in the order and with the figures of the pages."""

from datetime import UTC, datetime

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from advisor.protocol.measured.estimates import estimate_blocks
from advisor.protocol.measured.so_far import gain_of
from advisor.protocol.measured.trials import BlockState, Outcome
from advisor.tuning.history.study import VALUE, list_distributions, study_job
from tests.samples.job import make_finished_story

STORY = make_finished_story(datetime(2026, 11, 23, 9, 0, tzinfo=UTC))


def test_every_strategy_is_a_whole_trial_in_its_order() -> None:
    study = study_job(STORY.job, STORY.history)
    assert study.metric_names == [VALUE]
    numbers = [trial.number for trial in STORY.history.trials]
    assert [trial.user_attrs["trial"] for trial in study.trials] == sorted(numbers)
    changed = {name for trial in STORY.history.trials for name in trial.changes}
    for told, trial in zip(study.trials, STORY.history.trials, strict=True):
        assert set(told.params) == changed
        assert dict(trial.changes).items() <= told.params.items()
        assert told.datetime_start is not None


def test_states_say_how_a_strategy_ended_and_constraints_what_bars_it() -> None:
    study = study_job(STORY.job, STORY.history)
    by_outcome = {
        Outcome.PRUNED: TrialState.PRUNED,
        Outcome.OUT_OF_MEMORY: TrialState.FAIL,
        Outcome.INEFFECTIVE: TrialState.FAIL,
    }
    for told, trial in zip(study.trials, STORY.history.trials, strict=True):
        expected = (
            by_outcome.get(trial.outcome, TrialState.COMPLETE) if trial.outcome else TrialState.COMPLETE
        )
        assert told.state is expected, trial
        assert (told.constraints["runs"] > 0.0) == (expected is TrialState.FAIL)
        assert (told.constraints["allowed"] > 0.0) == (trial.effect.rank > STORY.job.spec.allow.rank)
    assert study.best_trial.constraints == {"allowed": 0.0, "runs": 0.0}


def test_value_is_the_gain_of_the_pages_and_each_race_has_one() -> None:
    study = study_job(STORY.job, STORY.history)
    done = [block for block in STORY.history.blocks if block.state is BlockState.DONE]
    of = {t.number: [b for b in done if b.trial_number == t.number] for t in STORY.history.trials}
    assert study.trials[0].value == 1.0
    for told, trial in zip(study.trials, STORY.history.trials, strict=True):
        gain = gain_of(trial, of[trial.number], lambda: estimate_blocks(of[0]))
        if gain is not None and told.state is TrialState.COMPLETE:
            assert told.value == gain.ratio
        if told.state is TrialState.COMPLETE:
            assert told.intermediate_values.keys() == {block.race for block in of[trial.number]}
    assert study.trials[0].intermediate_values[0] == pytest.approx(1.0, abs=0.05)


def test_ranges_hold_what_was_tried_on_the_scale_of_the_knob() -> None:
    ranges = list_distributions(STORY.job, STORY.history.trials)
    assert ranges["num_threads"] == IntDistribution(1, 12, log=True)
    assert ranges["fp16_allreduce"] == CategoricalDistribution((False, True))
    assert isinstance(ranges["fuse_grad_size_in_MB"], FloatDistribution)
    assert all(t.distributions == ranges for t in study_job(STORY.job, STORY.history).trials)
