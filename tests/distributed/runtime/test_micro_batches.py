"""A batch in parts: an unchanged script's losses and parameters, also where a rank runs out of memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .fake_agent import ABOUT_CPUS, END, launch, measure, race

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed

SCRIPT = "split_batch.py"


def read(folder: Path, name: str, rank: int) -> list[float]:
    return [float(word) for word in (folder / f"{name}.{rank}").read_text().split()]


def differ(folder: Path) -> float:
    """Of losses, norms, learning rates and parameters, the most that a rank's differ from those of a whole batch."""
    return max(
        abs(ours - own) / max(abs(own), 1e-3)
        for rank in range(2)
        for ours, own in zip(read(folder, "split", rank), read(folder, "plain", rank), strict=True)
    )


def train(folder: Path, parts: int, *words: str) -> str:
    """A real training under the strategy."""
    strategy = {"ADVISOR_RUN": json.dumps({"changes": {"micro_batches": parts}})}
    session = launch(folder, [SCRIPT, "--name", "split", *words], variables=strategy)
    assert session.code == 0, session.log
    return session.log


def train_plainly(folder: Path, *words: str) -> None:
    plain = launch(folder, [SCRIPT, "--name", "plain", *words], patched=False)
    assert plain.code == 0, plain.log


@ABOUT_CPUS
@pytest.mark.parametrize("words", [(), ("--model", "inside", "--accumulate", "2")])
def test_thirty_steps_are_those_of_the_whole_batch(tmp_path: Path, words: tuple[str, ...]) -> None:
    train_plainly(tmp_path, *words)
    log = train(tmp_path, 5, *words)
    assert "in force on every rank" in log
    assert "NOT in force" not in log
    assert differ(tmp_path) < 1e-11, log


@ABOUT_CPUS
def test_a_batch_that_does_not_fit_on_one_rank_trains_as_if_it_did(tmp_path: Path) -> None:
    train_plainly(tmp_path)
    log = train(tmp_path, 2, "--fits", "3")
    assert log.count("it makes 4 parts from here on") == 1
    assert differ(tmp_path) < 1e-11, log


@ABOUT_CPUS
def test_ranks_that_run_out_of_memory_by_turns_leave_none_waiting(tmp_path: Path) -> None:
    steps = 30
    log = train(tmp_path, 2, "--fits", "1", "--short", "1")
    failed = [(tmp_path / f"split.failed.{rank}").read_text().split() for rank in range(2)]
    assert all(int(times) >= 3 for rank in failed for times in rank), (failed, log)
    assert "one step goes without its samples" in log
    # Three numbers a step; the losses are each rank's own.
    ranks = [read(tmp_path, "split", rank) for rank in range(2)]
    assert ranks[0][3 * steps :] == ranks[1][3 * steps :]
    assert [ranks[0][place] for place in range(1, 3 * steps, 3)] == [
        ranks[1][place] for place in range(1, 3 * steps, 3)
    ]


@ABOUT_CPUS
def test_a_race_proves_it_and_counts_the_scripts_samples(tmp_path: Path) -> None:
    rules: dict[str, Any] = {"warmup_steps": 2, "min_steps": 6, "max_steps": 6, "profile_steps": 0}
    arms = {"base": {}, "split": {"micro_batches": 3}, "none": {"micro_batches": 1}}
    instructions = [race(arms, **rules), measure("wrong", {"micro_batches": 0}, **rules), END]
    session = launch(tmp_path, [SCRIPT, "--steps", "200"], instructions)
    split = session.result("split")
    assert split["samples_per_step"] == session.result("base")["samples_per_step"] == 24
    assert "in parts of at most 4 of 12 samples" in split["consumed"]["micro_batches"]
    assert not split["drifted"]
    assert "micro_batches" in session.result("none")["no_effect"]
    assert "whole number" in session.result("wrong")["not_consumed"]["micro_batches"]


@ABOUT_CPUS
def test_a_model_that_cannot_be_split_is_refused_or_found_out(tmp_path: Path) -> None:
    rules: dict[str, Any] = {"warmup_steps": 2, "min_steps": 4, "max_steps": 4, "profile_steps": 0}
    (tmp_path / "norm").mkdir()
    session = launch(tmp_path / "norm", [SCRIPT, "--steps", "60", "--model", "norm"], [END])
    assert "batch norm (body.1)" in session.hello["refusals"]["micro_batches"]
    instructions = [measure("split", {"micro_batches": 3}, **rules), END]
    session = launch(tmp_path, [SCRIPT, "--steps", "100", "--model", "weighted"], instructions)
    assert "something of the whole batch" in session.result("split")["not_consumed"]["micro_batches"]
