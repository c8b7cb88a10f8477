"""Results where a team keeps them: TensorBoard and Optuna in earnest, MLflow and W&B through their calls.

What stands in for MLflow and W&B takes what mlflow-skinny 3.17 and wandb 0.31 took on the day this was written.
"""

import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend, JournalStorage
from tensorboardX.proto.event_pb2 import Event

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.tuning.trackers import collect_results, log_results, read_targets
from advisor.protocol.asked.jobs import JobState
from advisor.tuning.history.study import study_job
from advisor.tuning.space.composition import list_own_values
from tests.samples.job import make_finished_story
from tests.unit.cli.advices import a_change
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_server import FakeServer

STORY = make_finished_story(datetime(2026, 11, 23, 9, 0, tzinfo=UTC))
assert STORY.advice is not None
WHAT = (STORY.advice, STORY.job, STORY.history)
TUNE = ("--", "torchrun", "train.py")


def read_events(path: Path) -> Iterator[Event]:
    """The records of an event file: length, its checksum, the record, its checksum."""
    data = path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]


def test_tensorboard_gets_the_verdict_and_a_point_for_every_trial_that_was_measured(tmp_path: Path) -> None:
    told = log_results(("tensorboard", str(tmp_path)), *WHAT)
    (path,) = (tmp_path / f"advisor-{STORY.job.id}").iterdir()
    assert str(path.parent) in told
    found = {
        (value.tag, event.step): value.simple_value
        for event in read_events(path)
        for value in event.summary.value
    }
    assert STORY.advice is not None
    assert STORY.advice.gain is not None
    assert found["verdict/gain", 0] == pytest.approx(STORY.advice.gain.ratio)
    steps = {step for tag, step in found if tag == "trials/samples_per_s"}
    assert steps == {trial.number for trial in collect_results(*WHAT).trials if trial.figures}


def test_optuna_gets_a_study_with_every_strategy_whole_and_no_second_one(tmp_path: Path) -> None:
    journal = tmp_path / "optuna.log"
    for place in (str(journal), str(journal), f"sqlite:///{tmp_path}/trials.db"):
        assert f"in {place}" in log_results(("optuna", place), *WHAT)
    results = collect_results(*WHAT)
    stores = (JournalStorage(JournalFileBackend(str(journal))), f"sqlite:///{tmp_path}/trials.db")
    for storage in stores:
        (name,) = optuna.get_all_study_names(storage)
        study = optuna.load_study(study_name=name, storage=storage)
        live = study_job(STORY.job, STORY.history)
        assert [(t.state, t.value, t.params) for t in study.trials] == [
            (t.state, t.value, t.params) for t in live.trials
        ]
        assert study.best_value == live.best_value
        assert study.best_value < max(t.value for t in study.trials if t.value is not None), "but not allowed"
        assert study.user_attrs["verdict"] == "change"
        whole = {**list_own_values(STORY.job), **results.trials[-1].changes}
        assert study.trials[-1].params == {knob: whole[knob] for knob in study.trials[-1].params}
        assert len({tuple(trial.params) for trial in study.trials}) == 1


class Calls(ModuleType):
    """A module that writes down what is asked of it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.made: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **options: Any) -> Any:
            self.made.append((name, args[0] if args else options))
            if name == "log_artifacts":
                assert (Path(args[0]) / "strategy.json").is_file()
            return SimpleNamespace(name=args[0] if args else "")

        return call

    @contextmanager
    def start_run(self, **options: Any) -> Iterator[Any]:
        """MLflow's run; those of trials lie in the job's."""
        self.made.append(("start_run", options))
        yield SimpleNamespace(info=SimpleNamespace(run_id="r1"))


def test_mlflow_gets_a_run_for_the_job_and_one_in_it_for_every_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = Calls("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    assert "run r1" in log_results(("mlflow", "http://host:5000"), *WHAT)
    assert mlflow.made[0] == ("set_tracking_uri", "http://host:5000")
    runs = [options for name, options in mlflow.made if name == "start_run"]
    assert [run.get("nested", False) for run in runs] == [False] + [True] * len(STORY.history.trials)
    metrics = [given for name, given in mlflow.made if name == "log_metrics"]
    assert metrics[0]["gain_low"] <= metrics[0]["gain"] <= metrics[0]["gain_high"]
    assert any(name == "log_artifacts" for name, _ in mlflow.made)


def test_wandb_gets_a_table_of_trials_a_summary_and_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    wandb, summary, tables, kept = ModuleType("wandb"), {}, [], []

    @contextmanager
    def init(**options: Any) -> Iterator[Any]:
        assert options["project"] == "team"
        yield SimpleNamespace(
            id="w1", log=lambda given: None, summary=summary, log_artifact=lambda given: kept.append(given)
        )

    def keep_table(columns: list[str], data: list[list[Any]]) -> None:
        tables.append((columns, data))

    artifact = SimpleNamespace(
        add_dir=lambda folder: kept.extend(path.name for path in Path(folder).iterdir())
    )
    for name, value in {"init": init, "Table": keep_table, "Artifact": lambda *_, **__: artifact}.items():
        setattr(wandb, name, value)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    assert log_results(("wandb", "team"), *WHAT) == "W&B project team, run w1"
    ((columns, rows),) = tables
    assert all(len(row) == len(columns) for row in rows)
    assert len(rows) == len(STORY.history.trials)
    assert summary["verdict"] == "change"
    assert {"report.html", "strategy.json"} <= {name for name in kept if isinstance(name, str)}


def test_a_tracker_that_refuses_is_told_and_the_job_keeps_its_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = Calls("mlflow")
    broken.set_experiment = lambda _: 1 / 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", broken)
    with pytest.raises(CommandFailed, match="mlflow did not take the results: ZeroDivisionError") as raised:
        log_results(("mlflow", ""), *WHAT)
    assert f"advisor report {STORY.job.id} --log-to mlflow" in raised.value.hint


def test_unknown_tracker_and_one_that_is_not_installed_are_told_before_anything_starts(
    server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run("tune", "--log-to", "neptune", *TUNE)
    assert (result.exit_code, server.submitted) == (2, [])
    assert "mlflow, wandb, tensorboard" in result.stderr
    monkeypatch.setitem(sys.modules, "wandb", None)
    result = run("tune", "--log-to", "wandb:team", *TUNE)
    assert (result.exit_code, server.submitted) == (2, [])
    assert "pip install wandb" in result.stderr
    with pytest.raises(CommandFailed) as raised:
        read_targets(["wandb"])
    assert raised.value.exit_code is Exit.USAGE


def test_tune_writes_its_results_and_detached_it_cannot(server: FakeServer, run: Run, tmp_path: Path) -> None:
    server.advice = a_change()
    server.lives["new-1"] = [JobState.RUNNING, JobState.FINISHED]
    result = run("tune", "--log-to", f"tensorboard:{tmp_path / 'tb'}", *TUNE)
    assert result.exit_code == 0, result.stderr
    assert list((tmp_path / "tb").glob("advisor-*/events*"))
    assert run("tune", "--detach", "--log-to", "tensorboard", *TUNE).exit_code == 2


def test_report_is_one_file_and_goes_to_a_tracker_too(server: FakeServer, run: Run, tmp_path: Path) -> None:
    server.advice = a_change()
    server.add_job("aaa1", JobState.FINISHED)
    result = run("report", "aaa1", "-o", "r.html", "--log-to", f"tensorboard:{tmp_path / 'tb'}")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "r.html\n"
    assert "Start your training with: advisor export" in (tmp_path / "r.html").read_text()
    assert list((tmp_path / "tb").glob("advisor-aaa1/events*"))
