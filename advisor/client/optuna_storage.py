"""Jobs as studies of Optuna, read while they run: for optuna-dashboard, for Optuna's own figures and for notebooks.

    study = optuna.load_study(study_name="resnet (3f2a9c)", storage=JobsStorage(Client(url, token)))

Nothing is copied: every question is answered from the server. The advisor alone decides what is measured next and what
is advised, so that this storage takes nothing.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from io import UnsupportedOperation
from typing import Any, NoReturn, Protocol

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, TrialState, create_trial

from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.measured.estimates import estimate_blocks, rate_of
from advisor.protocol.measured.trials import Block, BlockState, JobHistory, Outcome, Trial
from advisor.protocol.views import JobPage, JobQuery

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
    """All jobs that the reader may see, each as a study whose trials are its strategies, valued by samples a second."""

    def __init__(self, reader: Jobs) -> None:
        self._reader = reader
        self._places: list[str] = []
        """Jobs in the order in which they were first seen: a study's number is its place."""

    def get_all_studies(self) -> list[FrozenStudy]:
        """Return every job, the latest ones last."""
        found = list(self._list_jobs())
        return [
            FrozenStudy(
                study_name=name_study(job), direction=StudyDirection.MAXIMIZE, study_id=self._place(job.id),
                user_attrs=_describe(job), system_attrs={},
            )
            for job in reversed(found)
        ]  # fmt: skip

    def get_study_id_from_name(self, study_name: str) -> int:
        """Return the number of the job whose study has that name, or that is the job's id; raises KeyError."""
        for job in self._list_jobs():
            if study_name in (name_study(job), job.id):
                return self._place(job.id)
        raise KeyError(f"No job's study is called {study_name}.")

    def get_study_name_from_id(self, study_id: int) -> str:
        """Return the name of a study."""
        return name_study(self._job(study_id))

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        """More samples a second are better."""
        self._job(study_id)
        return [StudyDirection.MAXIMIZE]

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        """Return where the job stands."""
        return _describe(self._job(study_id))

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        """Return nothing: Optuna keeps nothing here."""
        self._job(study_id)
        return {}

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,  # noqa: ARG002 - they are made anew for each question
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        """Return a job's strategies as they stand now."""
        job = self._job(study_id)
        trials = list_trials(job, self._reader.history(job.id), study_id * _TRIALS)
        return [trial for trial in trials if states is None or trial.state in states]

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Return a strategy as it stands now; raises KeyError."""
        for trial in self.get_all_trials(trial_id // _TRIALS):
            if trial._trial_id == trial_id:
                return trial
        raise KeyError(f"No trial has the number {trial_id}.")

    def _list_jobs(self) -> Iterator[Job]:
        page = self._reader.list_jobs(JobQuery())
        yield from page.items
        while page.next_cursor:
            page = self._reader.list_jobs(JobQuery(cursor=page.next_cursor))
            yield from page.items

    def _place(self, job_id: str) -> int:
        if job_id not in self._places:
            self._places.append(job_id)
        return self._places.index(job_id)

    def _job(self, study_id: int) -> Job:
        if not 0 <= study_id < len(self._places):
            raise KeyError(f"No study has the number {study_id}.")
        return self._reader.job(self._places[study_id])

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


def name_study(job: Job) -> str:
    """Return what the study of a job is called."""
    return f"{job.spec.name or 'job'} ({job.id})"


def _describe(job: Job) -> dict[str, Any]:
    told = {"state": job.state.value, "stage": job.stage.value, "because": job.state_reason}
    return {name: text for name, text in told.items() if text}


def list_trials(job: Job, history: JobHistory, first_id: int = 0) -> list[FrozenTrial]:
    """Return a job's strategies as trials of a study, whole: what a strategy leaves alone has the script's own value.

    Value: samples a second, the geometric mean over its races; intermediate values: each race. A strategy that changes
    more than the job allows breaks the constraint `allowed`: Optuna takes it for the best of nothing. One that failed
    for its own fault is *failed*, one whose races are under way or to come is *running*.
    """
    blocks: defaultdict[int, list[Block]] = defaultdict(list)
    for block in history.blocks:
        blocks[block.trial_number].append(block)
    found = sorted(history.trials, key=lambda trial: trial.number)
    knobs = sorted({knob for trial in found for knob in trial.changes} & job.baseline.keys())
    values = [{knob: trial.changes.get(knob, job.baseline[knob]) for knob in knobs} for trial in found]
    ranges = {knob: choose_range([each[knob] for each in values]) for knob in knobs}
    trials = []
    for number, (trial, params) in enumerate(zip(found, values, strict=True)):
        frozen = _freeze(job, trial, params, ranges, blocks[trial.number])
        frozen.number, frozen._trial_id = number, first_id + number
        trials.append(frozen)
    return trials


def _freeze(
    job: Job,
    trial: Trial,
    params: dict[str, Value],
    ranges: dict[str, BaseDistribution],
    blocks: Sequence[Block],
) -> FrozenTrial:
    done = [block for block in blocks if block.state is BlockState.DONE and block.summary]
    estimate = estimate_blocks(done)
    state = _find_state(trial, estimate is not None)
    figures: dict[str, Any] = {"strategy": trial.changes.describe(), "because": trial.because}
    if trial.outcome_reason:
        figures["ended"] = trial.outcome_reason
    if estimate is not None:
        figures["half of the 95 % interval, samples/s"] = round(estimate.half_width, 3)
        figures["step time, ms"] = round(estimate.step_time_s * 1e3, 4)
    frozen = create_trial(
        state=state,
        value=estimate.samples_per_s
        if estimate and state in (TrialState.COMPLETE, TrialState.PRUNED)
        else None,
        params=params,
        distributions=ranges,
        user_attrs={**figures, "trial": trial.number, "purpose": trial.purpose.value},
        intermediate_values={block.race: rate_of(block) for block in done if rate_of(block) > 0.0},
        constraints={"allowed": 0.0 if trial.effect.rank <= job.spec.allow.rank else 1.0},
    )
    frozen.datetime_start = trial.created_at.astimezone().replace(tzinfo=None)
    if frozen.state.is_finished():
        ended = trial.finished_at or max(
            (b.finished_at for b in done if b.finished_at), default=trial.created_at
        )
        frozen.datetime_complete = ended.astimezone().replace(tzinfo=None)
    return frozen


def _find_state(trial: Trial, is_measured: bool) -> TrialState:
    if trial.outcome is not None and trial.outcome.is_configurations_fault:
        return TrialState.FAIL
    if trial.outcome is Outcome.PRUNED:
        return TrialState.PRUNED
    if is_measured:
        return TrialState.COMPLETE
    return TrialState.RUNNING if trial.outcome is None else TrialState.FAIL


def choose_range(values: Sequence[Value]) -> BaseDistribution:
    """Return the narrowest distribution that holds all values."""
    if all(type(value) is int for value in values):
        return IntDistribution(int(min(values)), int(max(values)))
    if all(type(value) in {int, float} for value in values):
        return FloatDistribution(float(min(values)), float(max(values)))
    return CategoricalDistribution(list(dict.fromkeys(values)))
