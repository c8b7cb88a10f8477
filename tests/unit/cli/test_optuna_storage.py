"""Jobs read as studies of Optuna: whole, as they stand, and not to be written to."""

from datetime import UTC, datetime
from io import UnsupportedOperation

import optuna
import pytest
from optuna.trial import TrialState

from advisor.client.optuna_storage import JobsStorage
from advisor.protocol.asked.jobs import Job
from advisor.protocol.measured.trials import BlockState, JobHistory
from advisor.protocol.measured.trials import TrialState as Openness
from advisor.protocol.views import JobPage, JobQuery
from advisor.tuning.history.study import name_study, place_study
from tests.samples.job import make_finished_story

STORY = make_finished_story(datetime(2026, 11, 23, 9, 0, tzinfo=UTC))


class Reader:
    """One job, of which more is measured with time."""

    def __init__(self) -> None:
        self.measured = STORY.history

    def list_jobs(self, wanted: JobQuery) -> JobPage:
        assert wanted.limit
        return JobPage(items=(STORY.job,))

    def job(self, job_id: str) -> Job:
        assert job_id == STORY.job.id
        return STORY.job

    def history(self, job_id: str) -> JobHistory:
        assert job_id == STORY.job.id
        return self.measured


def load(reader: Reader) -> optuna.Study:
    return optuna.load_study(study_name=name_study(STORY.job), storage=JobsStorage(reader))


def test_study_is_what_the_job_has_measured_now() -> None:
    reader = Reader()
    study = load(reader)
    assert len(study.trials) == len(STORY.history.trials)
    assert study.best_trial.user_attrs["trial"] in {t.number for t in STORY.history.trials}
    assert all(set(trial.params) == set(study.trials[0].params) for trial in study.trials)
    assert study.trials[0].intermediate_values, "each race of the baseline"

    last = STORY.history.trials[-1]
    under_way = last.model_copy(update={"outcome": None, "state": Openness.OPEN, "finished_at": None})
    blocks = tuple(
        block.model_copy(update={"state": BlockState.ISSUED, "result": None, "summary": None})
        if block.trial_number == last.number
        else block
        for block in STORY.history.blocks
    )
    reader.measured = STORY.history.model_copy(
        update={"trials": (*STORY.history.trials[:-1], under_way), "blocks": blocks}
    )
    now = load(reader).trials[-1]
    assert (now.state, now.value, now.datetime_complete) == (TrialState.RUNNING, None, None)


def test_what_the_job_does_not_allow_is_never_the_best() -> None:
    study = load(Reader())
    forbidden = [t for t in study.trials if t.constraints["allowed"] > 0.0]
    assert forbidden
    assert study.best_trial.number not in {t.number for t in forbidden}
    told = [max(t.system_attrs["constraints"]) > 0.0 for t in study.trials]
    assert told == [max(t.constraints.values()) > 0.0 for t in study.trials], (
        "as optuna-dashboard 0.21 reads them"
    )


def test_job_is_found_by_its_id_and_an_unknown_one_is_said() -> None:
    storage = JobsStorage(Reader())
    number = storage.get_study_id_from_name(STORY.job.id)
    assert JobsStorage(Reader()).get_study_name_from_id(number) == name_study(STORY.job), (
        "whoever reads it, by its link"
    )
    assert place_study(STORY.job.id).endswith(f"/{number}")
    with pytest.raises(KeyError, match="nobodys"):
        optuna.load_study(study_name="nobodys", storage=storage)


def test_optuna_cannot_write_to_it() -> None:
    study = load(Reader())
    with pytest.raises(UnsupportedOperation, match="--sampler"):
        study.ask()
