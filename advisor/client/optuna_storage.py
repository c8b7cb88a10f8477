"""Jobs as studies of Optuna, read while they run: for optuna-dashboard, for Optuna's own figures and for notebooks.

    study = optuna.load_study(study_name="resnet (3f2a9c)", storage=JobsStorage(Client(url, token)))

Nothing is copied: every question is answered from the server. The advisor alone decides what is measured next and what
is advised, so that this storage takes nothing.
"""

from collections.abc import Callable, Container, Iterator
from io import UnsupportedOperation
from typing import Any, NoReturn, Protocol

from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, TrialState

from advisor.protocol.asked.jobs import Job
from advisor.protocol.measured.trials import JobHistory
from advisor.protocol.views import JobPage, JobQuery
from advisor.tuning.history.study import (
    METRIC_NAMES,
    describe_job,
    list_trials,
    name_study,
    number_study,
)

_TRIALS = 100_000
"""Optuna numbers the trials of all studies through: each study has so many numbers to itself."""


class Jobs(Protocol):
    """What jobs are read from: a client of the server, or the database of this machine."""

    def list_jobs(self, wanted: JobQuery) -> JobPage:
        """Return a page of jobs."""

    def job(self, job_id: str) -> Job:
        """Return a job."""

    def history(self, job_id: str) -> JobHistory:
        """Return what was measured for it."""


class JobsStorage(BaseStorage):  # type: ignore[misc,unused-ignore]
    """All jobs that the reader may see, each as a study whose trials are its strategies: see `study_job`."""

    def __init__(self, reader: Jobs) -> None:
        self._reader = reader
        self._ids: dict[int, str] = {}
        """Study's number -> job's id, of those that were seen."""

    def get_all_studies(self) -> list[FrozenStudy]:
        """Return every job, the latest ones last."""
        found = list(self._list_jobs())
        return [
            FrozenStudy(
                study_name=name_study(job), direction=StudyDirection.MAXIMIZE, study_id=number_study(job.id),
                user_attrs=describe_job(job), system_attrs=METRIC_NAMES,
            )
            for job in reversed(found)
        ]  # fmt: skip

    def get_study_id_from_name(self, study_name: str) -> int:
        """Return the number of the job whose study has that name, or that is the job's id; raises KeyError."""
        for job in self._list_jobs():
            if study_name in (name_study(job), job.id):
                return number_study(job.id)
        raise KeyError(f"No job's study is called {study_name}.")

    def get_study_name_from_id(self, study_id: int) -> str:
        """Return the name of a study."""
        return name_study(self._job(study_id))

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        """More throughput is better."""
        self._job(study_id)
        return [StudyDirection.MAXIMIZE]

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        """Return where the job stands."""
        return describe_job(self._job(study_id))

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        """Return what values are called."""
        self._job(study_id)
        return dict(METRIC_NAMES)

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,  # noqa: ARG002 - they are made anew for each question
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        """Return a job's strategies as they stand now."""
        job = self._job(study_id)
        trials = list_trials(job, self._reader.history(job.id))
        for trial in trials:
            trial._trial_id += study_id * _TRIALS
            # optuna-dashboard 0.21 knows constraints as Optuna 4 kept them only.
            trial.system_attrs["constraints"] = list(trial.constraints.values())
        return [trial for trial in trials if states is None or trial.state in states]

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Return a strategy as it stands now; raises KeyError."""
        for trial in self.get_all_trials(trial_id // _TRIALS):
            if trial._trial_id == trial_id:
                return trial
        raise KeyError(f"No trial has the number {trial_id}.")

    def _list_jobs(self) -> Iterator[Job]:
        cursor = None
        while True:
            page = self._reader.list_jobs(JobQuery(cursor=cursor))
            for job in page.items:
                self._ids[number_study(job.id)] = job.id
                yield job
            if not (cursor := page.next_cursor):
                return

    def _job(self, study_id: int) -> Job:
        if study_id not in self._ids:
            list(self._list_jobs())
        if study_id not in self._ids:
            raise KeyError(f"No study has the number {study_id}.")
        return self._reader.job(self._ids[study_id])

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise UnsupportedOperation(
            "The advisor decides what a job measures, and Optuna only reads it here. Another sampler is named when a "
            "job is submitted: advisor tune --sampler TPESampler."
        )

    create_new_study: Callable[..., int] = _refuse
    delete_study: Callable[..., None] = _refuse
    set_study_user_attr: Callable[..., None] = _refuse
    set_study_system_attr: Callable[..., None] = _refuse
    create_new_trial: Callable[..., int] = _refuse
    set_trial_param: Callable[..., None] = _refuse
    set_trial_state_values: Callable[..., bool] = _refuse
    set_trial_intermediate_value: Callable[..., None] = _refuse
    set_trial_user_attr: Callable[..., None] = _refuse
    set_trial_system_attr: Callable[..., None] = _refuse
