"""Verdict and trials where a team keeps its results: MLflow, W&B, TensorBoard or an Optuna study, when asked for."""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from advisor.answers.report import export_bundle, export_report
from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.screen import Screen
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.measured.estimates import estimate_blocks
from advisor.protocol.measured.trials import Block, JobHistory

if TYPE_CHECKING:
    from advisor.cli.connection import Reader


@dataclass(frozen=True)
class Tracker:
    """One place that results can be kept in."""

    modules: Sequence[str]
    """Any of them writes to it."""
    install: str
    write: Callable[[Any, str, "Results"], str]
    """Writes with the imported module; returns where it went, for people."""


@dataclass(frozen=True)
class Results:
    """What is written: plain names, figures and files."""

    job_id: str
    name: str
    figures: Mapping[str, float]
    """The verdict in figures: `gain`, `gain_low`, `gain_high`, `baseline_samples_per_s`, `device_hours`, …"""
    words: Mapping[str, str]
    """The verdict in words, and the advised strategy's changes."""
    trials: Sequence["TrialResult"]
    files: Mapping[str, bytes]
    """The export, and the report, by name."""
    job: Job
    history: JobHistory


@dataclass(frozen=True)
class TrialResult:
    """One strategy that was tried."""

    number: int
    changes: Mapping[str, Value]
    figures: Mapping[str, float]
    outcome: str


def read_targets(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return tracker and place of each `--log-to mlflow:http://host:5000`; raises `CommandFailed` (usage) for others.

    The tracker's package is looked for here, before anything is measured.
    """
    return [_read_target(text) for text in texts]


def _read_target(text: str) -> tuple[str, str]:
    name, _, place = text.partition(":")
    if name not in TRACKERS:
        raise CommandFailed(
            Exit.USAGE,
            f"--log-to {text}: results can be kept in {', '.join(TRACKERS)}.",
            "Write it as --log-to mlflow, or with a place as --log-to wandb:PROJECT or --log-to optuna:FILE.",
        )
    _import_first(name)
    return name, place


def log_results(target: tuple[str, str], advice: Advice, job: Job, history: JobHistory) -> str:
    """Write to the tracker, and return where it went. Raises `CommandFailed` where it cannot be written."""
    name, place = target
    module = _import_first(name)
    try:
        return TRACKERS[name].write(module, place, collect_results(advice, job, history))
    except Exception as error:
        raise CommandFailed(
            Exit.UNREACHABLE,
            f"{name} did not take the results: {type(error).__name__}: {error!s}",
            f"The job keeps them: `advisor report {job.id} --log-to {name}` tries again.",
        ) from error


def log_to_all(
    targets: Sequence[tuple[str, str]], client: "Reader", job: Job, advice: Advice, screen: Screen
) -> None:
    """Write to every tracker and say where it went; a tracker that fails takes nothing from the others."""
    failures = []
    history = client.history(job.id)
    for target in targets:
        try:
            screen.tell(f"Verdict and trials are in {log_results(target, advice, job, history)}.")
        except CommandFailed as failure:
            failures.append(failure)
    if failures:
        raise failures[0]


def collect_results(advice: Advice, job: Job, history: JobHistory) -> Results:
    """Return what is written of a job."""
    gain = advice.gain
    figures = {
        "baseline_samples_per_s": advice.baseline_samples_per_s,
        "strategy_samples_per_s": advice.strategy_samples_per_s,
        "device_hours": advice.cost.device_hours,
        "wall_s": advice.cost.wall_s,
        "trials": float(advice.cost.trials),
    }
    if gain is not None and gain.is_known:
        figures |= {"gain": gain.ratio, "gain_low": gain.low, "gain_high": gain.high}
    blocks: defaultdict[int, list[Block]] = defaultdict(list)
    for block in history.done_blocks():
        blocks[block.trial_number].append(block)
    words = {
        "verdict": advice.verdict.value,
        "headline": advice.headline,
        "cluster": advice.cluster,
        **{f"change.{knob}": str(value) for knob, value in advice.changes.items()},
    }
    trials = tuple(
        TrialResult(
            number=trial.number,
            changes=dict(trial.changes),
            figures=_list_figures(blocks[trial.number]),
            outcome=trial.outcome.value if trial.outcome else "",
        )
        for trial in sorted(history.trials, key=lambda trial: trial.number)
    )
    files = {**export_bundle(advice, job), "report.html": export_report(advice, job, history).encode()}
    return Results(job.id, job.spec.name or job.id, figures, words, trials, files, job, history)


def _list_figures(blocks: Sequence[Block]) -> dict[str, float]:
    found = estimate_blocks(blocks)
    if found is None:
        return {}
    figures = {
        "samples_per_s": found.samples_per_s,
        "samples_per_s_half_width": found.half_width,
        "step_time_ms": found.step_time_s * 1e3,
    }
    if found.exposed_comm_s is not None:
        figures["exposed_comm_ms"] = found.exposed_comm_s * 1e3
    return figures


def _write_mlflow(mlflow: Any, place: str, results: Results) -> str:
    if place:
        mlflow.set_tracking_uri(place)
    experiment = mlflow.set_experiment("fleet-advisor")
    with mlflow.start_run(run_name=results.name, tags={"job": results.job_id}) as run:
        mlflow.set_tags(dict(results.words))
        mlflow.log_metrics(dict(results.figures))
        with _on_disk(results.files) as folder:
            mlflow.log_artifacts(str(folder))
        for trial in results.trials:
            with mlflow.start_run(run_name=f"trial {trial.number}", nested=True):
                mlflow.log_params(dict(trial.changes))
                mlflow.log_metrics(dict(trial.figures))
                mlflow.set_tag("outcome", trial.outcome)
    return f"MLflow experiment {experiment.name}, run {run.info.run_id}"


def _write_wandb(wandb: Any, place: str, results: Results) -> str:
    project = place or "fleet-advisor"
    with wandb.init(project=project, name=results.name, config={"job": results.job_id}) as run:
        columns = ["trial", "changes", "outcome", "samples_per_s", "samples_per_s_half_width", "step_time_ms"]
        rows = [
            [trial.number, _say_changes(trial), trial.outcome, *map(trial.figures.get, columns[3:])]
            for trial in results.trials
        ]
        run.log({"trials": wandb.Table(columns=columns, data=rows)})
        run.summary.update({**results.figures, **results.words})
        kept = wandb.Artifact(f"strategy-{results.job_id}", type="strategy")
        with _on_disk(results.files) as folder:
            kept.add_dir(str(folder))
            run.log_artifact(kept)
    return f"W&B project {project}, run {run.id}"


def _write_tensorboard(module: Any, place: str, results: Results) -> str:
    folder = Path(place or "runs") / f"advisor-{results.job_id}"
    with module.SummaryWriter(str(folder)) as writer:
        for name, value in results.figures.items():
            writer.add_scalar(f"verdict/{name}", value, 0)
        told = "\n\n".join(f"**{name}** {text}" for name, text in results.words.items() if text)
        writer.add_text("verdict", told, 0)
        for trial in results.trials:
            for name, value in trial.figures.items():
                writer.add_scalar(f"trials/{name}", value, trial.number)
            writer.add_text("trials", f"{trial.number}: {_say_changes(trial)} {trial.outcome}", trial.number)
    return f"TensorBoard's folder {folder}"


def _write_optuna(optuna: Any, place: str, results: Results) -> str:
    """Write a study of its own, with every strategy whole; one that was written before is replaced."""
    from advisor.tuning.history.study import list_trials, name_study

    place = place or "optuna.log"
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal = optuna.storages.journal
    storage = place if "://" in place else journal.JournalStorage(journal.JournalFileBackend(place))
    name = name_study(results.job)
    if name in optuna.get_all_study_names(storage):
        optuna.delete_study(study_name=name, storage=storage)
    study = optuna.create_study(study_name=name, storage=storage, direction="maximize")
    for key, value in {**results.words, **results.figures}.items():
        study.set_user_attr(key, value)
    study.add_trials(list_trials(results.job, results.history))
    return f"the Optuna study {name} in {place} (optuna-dashboard {place})"


def _say_changes(trial: TrialResult) -> str:
    return ", ".join(f"{knob}={value}" for knob, value in trial.changes.items()) or "as the script stands"


@contextmanager
def _on_disk(files: Mapping[str, bytes]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="advisor-") as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        yield Path(folder)


TRACKERS: Mapping[str, Tracker] = MappingProxyType(
    {
        "mlflow": Tracker(("mlflow",), "mlflow-skinny", _write_mlflow),
        "wandb": Tracker(("wandb",), "wandb", _write_wandb),
        "tensorboard": Tracker(
            ("torch.utils.tensorboard", "tensorboardX"), "tensorboard", _write_tensorboard
        ),
        "optuna": Tracker(("optuna",), "optuna", _write_optuna),
    }
)


def _import_first(name: str) -> Any:
    """Import what writes to a tracker; raises `CommandFailed` (usage) with what to install."""
    tracker = TRACKERS[name]
    for module in tracker.modules:
        try:
            return import_module(module)
        except ImportError:
            continue
    raise CommandFailed(
        Exit.USAGE,
        f"--log-to {name} needs the package {tracker.install}, which is not installed here.",
        f"pip install {tracker.install}",
    )
