"""A job as a study of Optuna: every strategy a trial, from what was measured up to now.

The one place that says what a job is to Optuna. Pages draw it, `JobsStorage` and `advisor study` show it.
Nothing is stored: the same history always makes the same study.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState, create_trial

from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.kinds import Scale
from advisor.protocol.knobs.knob import Knob
from advisor.protocol.measured.estimates import Estimate, estimate_blocks, rate_of
from advisor.protocol.measured.so_far import gain_of
from advisor.protocol.measured.trials import Block, BlockState, JobHistory, Outcome, Trial
from advisor.protocol.standing import SoFar
from advisor.tuning.space.composition import list_own_values

VALUE = "throughput over the baseline's"
"""What a trial's value is: 1 is the script as it stands, 1.25 a quarter more samples a second."""
METRIC_NAMES = {"study:metric_names": [VALUE]}
"""The same where Optuna keeps what values are called."""


def study_job(job: Job, history: JobHistory) -> optuna.Study:
    """Return the job as a study in memory, to be maximised, whose trials are its strategies in their order.

    A parameter is a knob that some strategy changes. Each trial has a value of all of them, the knobs' own: what its
    strategy leaves alone is as in the script.

    Value: throughput over the baseline's in their common races; intermediate values: the same in each race (of the
    baseline: that race's throughput over the mean of all). COMPLETE was measured, PRUNED was given up because it was
    surely slower, FAIL did not run, had no effect or was lost, RUNNING has races under way or to come. Constraints,
    broken above 0: `allowed`, the strategy changes no more than the job allows; `runs`, it does not fail by its own
    fault. User attributes: `trial`, its number in the job; `strategy`, `because`, `ended`, `purpose` in words; rates,
    step time and the interval of the value in figures.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(study_name=name_study(job), direction="maximize")
    study._storage.set_study_system_attr(study._study_id, *next(iter(METRIC_NAMES.items())))
    for name, text in describe_job(job).items():
        study.set_user_attr(name, text)
    study.add_trials(list_trials(job, history))
    return study


def name_study(job: Job) -> str:
    """Return what the study of a job is called."""
    return f"{job.spec.name or 'job'} ({job.id})"


def number_study(job_id: str) -> int:
    """Return the number of a job's study, the same wherever it is read."""
    return int.from_bytes(sha256(job_id.encode()).digest()[:4], "big")


def place_study(job_id: str) -> str:
    """Return where optuna-dashboard has the job's study: the path of its address."""
    return f"/dashboard/studies/{number_study(job_id)}"


def describe_job(job: Job) -> dict[str, str]:
    """Return where the job stands, as attributes of its study."""
    told = {"state": job.state.value, "stage": job.stage.value, "because": job.state_reason}
    return {name: text for name, text in told.items() if text}


def list_distributions(job: Job, trials: Iterable[Trial]) -> dict[str, BaseDistribution]:
    """Return the range of every knob that some trial changes: it holds all values tried.

    Numbers stay numbers, on a logarithmic scale where the knob has one; everything else is a choice.
    """
    own = list_own_values(job)
    values: dict[str, list[Value]] = {}
    for trial in trials:
        for name, value in trial.changes.items():
            values.setdefault(name, []).append(value)
    return {
        name: _choose_distribution(job.catalogue.get(name), [*found, own[name]])
        for name, found in sorted(values.items())
        if name in own
    }


def _choose_distribution(knob: Knob | None, values: Sequence[Value]) -> BaseDistribution:
    if any(isinstance(value, bool | str) for value in values):
        return CategoricalDistribution(sorted(set(values), key=str))
    numbers = [float(value) for value in values]
    is_log = knob is not None and knob.scale is Scale.LOG and min(numbers) > 0
    if all(isinstance(value, int) for value in values):
        return IntDistribution(int(min(numbers)), int(max(numbers)), log=is_log)
    return FloatDistribution(min(numbers), max(numbers), log=is_log)


def list_trials(job: Job, history: JobHistory) -> list[FrozenTrial]:
    """Return the trials of `study_job`."""
    own = list_own_values(job)
    ranges = list_distributions(job, history.trials)
    done: defaultdict[int, list[Block]] = defaultdict(list)
    for block in history.blocks:
        if block.state is BlockState.DONE and block.summary is not None:
            done[block.trial_number].append(block)
    baseline = estimate_blocks(done[0])
    found = []
    for number, trial in enumerate(sorted(history.trials, key=lambda trial: trial.number)):
        blocks = done[trial.number]
        gain = gain_of(trial, blocks, lambda: baseline)
        frozen = create_trial(
            **_judge(trial, _find_value(trial, gain, baseline)),
            params={name: trial.changes.get(name, own[name]) for name in ranges},
            distributions=ranges,
            user_attrs=_describe_trial(trial, estimate_blocks(blocks), gain),
            intermediate_values=_list_races(trial, blocks, baseline),
            constraints={
                "allowed": float(trial.effect.rank > job.spec.allow.rank),
                "runs": float(_is_at_fault(trial)),
            },
        )
        frozen.number = frozen._trial_id = number
        frozen.datetime_start, frozen.datetime_complete = _time(trial, blocks, frozen.state)
        found.append(frozen)
    return found


def _find_value(trial: Trial, gain: SoFar | None, baseline: Estimate | None) -> float | None:
    if trial.number == 0:
        return 1.0 if baseline else None
    return gain.ratio if gain else None


def _is_at_fault(trial: Trial) -> bool:
    return trial.outcome is not None and (
        trial.outcome.is_configurations_fault or trial.outcome is Outcome.INEFFECTIVE
    )


def _judge(trial: Trial, value: float | None) -> dict[str, Any]:
    if _is_at_fault(trial):
        return {"state": TrialState.FAIL}
    if trial.outcome is Outcome.PRUNED:
        return {"state": TrialState.PRUNED, "value": value}
    if value is not None:
        return {"state": TrialState.COMPLETE, "value": value}
    return {"state": TrialState.RUNNING if trial.outcome is None else TrialState.FAIL}


def _list_races(trial: Trial, blocks: Sequence[Block], baseline: Estimate | None) -> dict[int, float]:
    if trial.number == 0:
        return {b.race: rate_of(b) / baseline.samples_per_s for b in blocks} if baseline else {}
    gains = {block.race: gain_of(trial, [block], lambda: baseline) for block in blocks}
    return {race: gain.ratio for race, gain in gains.items() if gain is not None}


def _describe_trial(trial: Trial, estimate: Estimate | None, gain: SoFar | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "trial": trial.number, "purpose": trial.purpose.value, "strategy": trial.changes.describe(),
        "because": trial.because,
    }  # fmt: skip
    if trial.outcome_reason:
        told["ended"] = trial.outcome_reason
    if estimate is not None:
        told["samples/s"] = round(estimate.samples_per_s, 3)
        told["step time, ms"] = round(estimate.step_time_s * 1e3, 4)
    if gain is not None:
        told["95 % interval"] = [round(gain.low, 4), round(gain.high, 4)]
    return told


def _time(trial: Trial, blocks: Collection[Block], state: TrialState) -> tuple[datetime, datetime | None]:
    """When it began and when it was done, in local time as Optuna has it."""
    began = trial.created_at
    ends = [block.finished_at for block in blocks if block.finished_at]
    ended = trial.finished_at or max(ends, default=began)
    return _local(began), _local(ended) if state.is_finished() else None


def _local(at: datetime) -> datetime:
    return at.astimezone().replace(tzinfo=None)
