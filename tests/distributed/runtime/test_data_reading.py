"""Data-reading knobs in a live job: faster reading of the very same batches, proved by the processes that read them."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from .fake_agent import ABOUT_CPUS, END, Session, launch, measure, race

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed

WORKERS, PREFETCH = "loader_num_workers", "loader_prefetch_factor"
PERSISTENT, PIN = "loader_persistent_workers", "loader_pin_memory"
SWITCHES = [
    {},
    {WORKERS: 3},
    {WORKERS: 2, PREFETCH: 4, PERSISTENT: True},
    {},
    {WORKERS: 0},
    {PREFETCH: 4, PIN: True, WORKERS: -1},
]


def run(folder: Path, words: str, instructions: list[dict[str, Any]] | None) -> Session:
    """The script as it stands (None), or under these instructions."""
    folder.mkdir(exist_ok=True)
    script = ["slow_reading.py", *words.split()]
    session = launch(folder, script, instructions, patched=instructions is not None)
    assert session.code == 0, session.log
    return session


def read(session: Session, what: str, rank: int) -> list[str]:
    return (session.folder / f"{what}.{rank}").read_text().splitlines()


@ABOUT_CPUS
@pytest.mark.calm
def test_other_workers_read_the_same_batches_faster_and_leave_nothing_behind(tmp_path: Path) -> None:
    words = "--epochs 4 --samples 200 --sleep 0.005"
    reference = run(tmp_path / "reference", words, None)
    block: dict[str, Any] = {"warmup_steps": 1, "min_steps": 8, "max_steps": 16, "profile_steps": 0}
    blocks = [measure(str(index), overrides, **block) for index, overrides in enumerate(SWITCHES)]
    session = run(tmp_path / "tuned", words, [*blocks, measure("rest", warmup_steps=10_000)])
    for rank in range(2):
        assert read(session, "batches", rank) == read(reference, "batches", rank), session.log
        assert max(map(int, read(session, "workers", rank))) >= 3
        assert read(session, "workers", rank)[-1] == "0"
    own = {name: session.hello["baseline"][name] for name in (WORKERS, PREFETCH, PIN, PERSISTENT)}
    assert own == {WORKERS: 0, PREFETCH: 2, PIN: False, PERSISTENT: False}
    assert set(session.hello["refusals"]) >= {PIN}
    for index in range(5):
        assert session.result(str(index))["not_consumed"] == {}
        assert set(session.result(str(index))["consumed"]) == set(SWITCHES[index])
    alone, shared = session.result("0"), session.result("1")
    assert median(shared["step_time_s"]) < 0.75 * median(alone["step_time_s"])
    assert shared["phases"]["data_wait_s"] < 0.75 * alone["phases"]["data_wait_s"]
    assert "batches came from 3 worker processes (pids " in shared["consumed"][WORKERS]
    assert session.result("2")["consumed"][PREFETCH].endswith("4 asked for ahead of each.")
    assert session.result("4")["no_effect"] == {WORKERS: "The script's loader has 0 already."}
    wrong = session.result("5")["not_consumed"]
    assert wrong[PREFETCH] == "There are no workers, so prefetch_factor means nothing."
    assert "-1 is not a whole number" in wrong[WORKERS]
    assert "trains on CPU" in wrong[PIN]


def test_samples_that_only_the_rank_itself_can_read_go_on_being_read_there(tmp_path: Path) -> None:
    session = run(tmp_path, "--epochs 40 --no-children", [measure("a", {WORKERS: 1}), measure("b"), END])
    assert session.result("a")["not_consumed"] == {
        WORKERS: "Reading with num_workers=1 and prefetch_factor=2 failed: "
        "OSError: the archive is open in another process."
    }
    assert session.result("b")["not_consumed"] == {}


def test_an_iterable_dataset_is_refused_with_a_sentence(tmp_path: Path) -> None:
    session = run(tmp_path, "--epochs 40 --iterable", [measure("a", {WORKERS: 1}), END])
    assert "IterableDataset" in session.hello["refusals"][WORKERS]
    assert "IterableDataset" in session.result("a")["not_consumed"][WORKERS]


MULTIPLE = "batch_size_multiple"


def list_samples(session: Session, rank: int) -> tuple[list[int], set[int]]:
    """The samples in the order of training, and how many a step had."""
    lines = read(session, "batches", rank)[:-1]
    steps = [[int(word) for word in line[1 : line.index("]")].split(", ")] for line in lines]
    return [sample for step in steps for sample in step], {len(step) for step in steps}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_larger_batch_has_the_same_samples_in_fewer_steps(workers: int, tmp_path: Path) -> None:
    words = f"--epochs 12 --samples 40 --sleep 0.001 --workers {workers}"
    reference = run(tmp_path / "reference", words, None)
    block: dict[str, Any] = {"warmup_steps": 1, "min_steps": 8, "max_steps": 8, "profile_steps": 0}
    blocks = [measure("own", {}, **block), measure("double", {MULTIPLE: 2}, **block)]
    blocks += [measure("both", {MULTIPLE: 3, WORKERS: 1}, **block), measure("rest", warmup_steps=10_000)]
    session = run(tmp_path / "tuned", words, blocks)
    assert session.hello["baseline"][MULTIPLE] == 1
    for rank in range(2):
        found, sizes = list_samples(session, rank)
        expected, _ = list_samples(reference, rank)
        # Shuffled by the script's own generator, which dropout draws from as well: the first epoch is the same.
        assert found[:40] == expected[:40]
        assert all(len(set(found[at : at + 40])) == 40 for at in range(0, 480, 40))
        assert sizes == {4, 8, 12}
    own, double, both = (session.result(name) for name in ("own", "double", "both"))
    # A short batch ends an epoch of 40 samples where three of 4 make one.
    assert (own["samples_per_step"], double["samples_per_step"]) == (8, 16)
    assert 16 < both["samples_per_step"] <= 24
    assert min(double["steps"], own["steps"]) >= 6  # of 8, without those that begin an epoch
    assert "batches were 2 of the script's in one, 8 samples instead of 4." in double["consumed"][MULTIPLE]
    assert set(both["consumed"]) == {MULTIPLE, WORKERS}


def test_arms_of_a_larger_batch_take_fewer_steps_of_as_many_samples(tmp_path: Path) -> None:
    arms: dict[str, dict[str, Any]] = {"own": {}, "double": {MULTIPLE: 2}}
    rules: dict[str, Any] = {
        "target_s": 1.0, "warmup_steps": 2, "min_steps": 12, "max_steps": 48, "segment_steps": 12,
        "loss_check_steps": 4,
    }  # fmt: skip
    session = run(tmp_path, "--samples 8000 --sleep 0.001", [race(arms, **rules), END])
    own, double = session.result("own"), session.result("double")
    assert own["samples"] == double["samples"] >= 2 * 24 * 4
    assert own["segments"] == [2 * steps for steps in double["segments"]]
    assert len(own["loss_checks"]) == len(double["loss_checks"]) == len(own["segments"])
    # What is learned is held against the script's own batches in both: of 4, not of 8.
    assert all(len(check) == 4 for check in double["loss_checks"])


def test_a_loader_without_batches_cannot_make_larger_ones(tmp_path: Path) -> None:
    session = run(tmp_path, "--epochs 60 --unbatched", [measure("a", {MULTIPLE: 2}), END])
    assert "hands over samples and no batches" in session.hello["refusals"][MULTIPLE]
    assert "hands over samples and no batches" in session.result("a")["not_consumed"][MULTIPLE]


def test_a_loader_that_is_iterated_in_eval_mode_is_read_with_the_settings_in_force(tmp_path: Path) -> None:
    told = {"ADVISOR_RUN": json.dumps({"changes": {WORKERS: 1}})}
    session = launch(tmp_path, ["trainer_order.py", "--epochs", "4"], variables=told)
    assert session.code == 0, session.log
    assert "1 of 1 advised settings are in force on every rank." in session.log
    for rank in range(2):
        first, *later = json.loads((tmp_path / f"read.{rank}").read_text())
        assert 0 < first[0] < first[1]
        assert later == [[768, 768]] * 3


def test_every_micro_batch_counts_whose_batches_were_fetched_in_eval_mode(tmp_path: Path) -> None:
    arms = {"a": {}, "b": {WORKERS: 1}}
    rules = {"min_steps": 24, "max_steps": 24, "warmup_steps": 2}
    session = launch(tmp_path, ["trainer_order.py", "--epochs", "12"], [race(arms, **rules), END])
    assert session.code == 0, session.log
    facts = session.hello["facts"]
    assert (facts["batch_size_per_rank"], facts["microbatches_per_step"]) == (32, 4)
    assert facts["dataloader"]["num_workers"] == 0
    for arm in arms:
        assert session.result(arm)["samples_per_step"] == 64
        assert session.result(arm)["not_consumed"] == {}
