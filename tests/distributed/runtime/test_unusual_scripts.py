"""Trainings out of the ordinary under a strategy: none crashes, none comes out otherwise than it may."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .fake_agent import END, Session, launch, race

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed

MERGING = {"gradient_merge": True, "gradient_merge_k_steps": 4}
UNFUSED = {"fuse_all_reduce_ops": False}
SECOND_GROUP = {"nccl_comm_num": 2}


def train(folder: Path, name: str, steps: int, changes: dict[str, Any] | None = None) -> Session:
    """A real training: under a strategy, or as it is."""
    told = (
        {"ADVISOR_RUN": json.dumps({"changes": changes, "report": str(folder / "report.json")})}
        if changes
        else {}
    )
    session = launch(folder, ["unusual.py", name, str(steps)], variables=told, patched=bool(changes))
    assert session.code == 0, session.log
    return session


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{name}.{rank}").read_text()) for rank in range(2)]


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


@pytest.mark.parametrize(
    ("name", "steps", "changes", "sentence"),
    [
        ("stateful_hook", 40, UNFUSED, "may keep something for every bucket"),
        ("joined", 40, SECOND_GROUP, "trains in a join context"),
        ("late_hook", 60, {**UNFUSED, **SECOND_GROUP}, "registered a communication hook of its own since"),
        ("optimizers_anew", 60, UNFUSED, "anew before it can be proved in force on them, and did so 5 times"),
        ("clears_by_hand", 60, MERGING, "It was taken back."),
        ("clears_in_one_graph", 60, MERGING, "It was taken back."),
    ],
)
def test_what_a_script_cannot_bear_is_left_as_the_script_has_it(
    name: str, steps: int, changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    under = train(tmp_path, name, steps, changes)
    steered = read(tmp_path, name)
    assert sentence in under.log
    if name.startswith("clears_"):
        assert all(rank["updates"] > steps - 20 for rank in steered), "no update is held back after the proof"
        return
    train(tmp_path, name, steps)
    assert steered == read(tmp_path, name), under.log


def test_merge_holds_clipping_and_tells_what_else_changes_gradients_that_are_only_added_up_so_far(
    tmp_path: Path,
) -> None:
    for name, is_told in (("shrinks_by_hand", True), ("clips", False), ("clips_in_one_graph", True)):
        folder = tmp_path / name
        folder.mkdir()
        under = train(folder, name, 60, MERGING)
        assert report(folder)["in_force"]["gradient_merge"], under.log
        assert ("merged steps weigh unequally" in json.dumps(report(folder))) == is_told


@pytest.mark.parametrize("name", ["second_optimizer", "second_model"])
@pytest.mark.parametrize(
    "changes", [MERGING, {"amp": True, "amp_dtype": "fp16"}, {"localsgd": True, "localsgd_k_steps": 4}]
)
def test_a_strategy_goes_on_with_what_the_script_goes_on_with(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    session = train(tmp_path, name, 120, changes)
    found = read(tmp_path, name)
    assert all(0.0 < rank["loss"] < 1.3 for rank in found), session.log
    if "localsgd" not in changes:
        assert found[0]["sum"] == found[1]["sum"], "ranks that drift apart do so for ever"
    assert set(report(tmp_path)["in_force"]) == set(changes), session.log


@pytest.mark.parametrize("name", ["inner_optimizers", "copies"])
def test_what_no_constructor_or_no_model_announced_trains_as_without_us(name: str, tmp_path: Path) -> None:
    """Optimizers that are made anew in every step are no steps, and a copy of a wrapped model takes the strategy."""
    session = train(tmp_path, name, 80, UNFUSED)
    steered = read(tmp_path, name)
    assert set(report(tmp_path)["in_force"]) == set(UNFUSED), session.log
    train(tmp_path, name, 80)
    assert steered == read(tmp_path, name)


@pytest.mark.parametrize(
    "changes", [{"amp": True, "amp_dtype": "bf16"}, {"localsgd": True, "localsgd_k_steps": 2}, MERGING]
)
def test_a_forward_that_fails_leaves_no_strategy_behind(changes: dict[str, Any], tmp_path: Path) -> None:
    session = train(tmp_path, "failing_forward", 40, changes)
    assert [rank["not_its_own"] for rank in read(tmp_path, "failing_forward")] == [0, 0]
    assert set(report(tmp_path)["in_force"]) == set(changes), session.log


def test_a_broadcast_of_constant_buffers_is_timed_and_left_out(tmp_path: Path) -> None:
    arms: dict[str, dict[str, Any]] = {"own": {}, "silent": {"broadcast_buffers": False}}
    session = launch(tmp_path, ["unusual.py", "table", "400"], [race(arms, min_steps=12, max_steps=12), END])
    own, silent = session.result("own"), session.result("silent")
    assert own["phases"]["buffers_s"] > 0.0 == silent["phases"]["buffers_s"]
    assert "1 buffers (8 MiB) were not sent" in silent["consumed"]["broadcast_buffers"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("table_that_changes", "  NOT in force: broadcast_buffers. Some buffers change"),
        ("table_that_changes_late", "NOT in force any more: broadcast_buffers. Some buffers change"),
    ],
)
def test_buffers_that_change_later_are_rank_0s_again_on_every_rank(
    name: str, sentence: str, tmp_path: Path
) -> None:
    session = train(tmp_path, name, 120, {"broadcast_buffers": False})
    steered = read(tmp_path, name)
    assert sentence in session.log
    assert steered[0]["table"] == steered[1]["table"]


def test_models_that_are_given_up_are_collected(tmp_path: Path) -> None:
    session = train(tmp_path, "folds", 60 * 6, {"num_iteration_per_drop_scope": 10})
    assert all(rank["alive"] <= 3 for rank in read(tmp_path, "folds")), session.log
    assert "num_iteration_per_drop_scope" in report(tmp_path)["in_force"]


def test_a_sampler_that_counts_is_not_read_ahead_of(tmp_path: Path) -> None:
    session = train(tmp_path, "counting_sampler", 40, {"loader_num_workers": 1})
    assert [rank["ahead"] for rank in read(tmp_path, "counting_sampler")] == [0, 0]
    assert "sampler.given changes while batches are read" in session.log


@pytest.mark.parametrize("steps", [20, 80])
def test_a_model_that_trains_in_eval_mode_is_told_apart_from_one_that_stops_early(
    steps: int, tmp_path: Path
) -> None:
    session = train(tmp_path, "eval_mode", steps, UNFUSED)
    assert "in eval mode" in session.log
    assert "Let it run longer" not in session.log


def test_reducers_side_by_side_forget_a_pass_that_never_came(tmp_path: Path) -> None:
    arms: dict[str, dict[str, Any]] = {"own": {}, "unfused": UNFUSED, "second": SECOND_GROUP}
    session = launch(tmp_path, ["unusual.py", "gan", "400"], [race(arms, min_steps=12, max_steps=12), END])
    assert "race" in [message["kind"] for message in session.messages], session.log
    assert "bucket view" not in session.log


@pytest.mark.parametrize(
    ("name", "knob", "value"),
    [
        ("looks_at_all", "sharding_stage", 2),
        ("looks_with_gradients", "sharding_stage", 2),
        ("looks_at_layers_within_layers", "sharding_stage", 2),
        ("looks_at_a_part", "sharding_forward_prefetch", 3),
    ],
)
def test_gathered_parameters_do_not_outlive_an_optimizers_step(
    name: str, knob: str, value: int, tmp_path: Path
) -> None:
    session = train(tmp_path, name, 40, {knob: value})
    steered = read(tmp_path, name)
    assert set(report(tmp_path)["in_force"]) == {knob}, session.log
    train(tmp_path, name, 40)
    assert steered == read(tmp_path, name), "no weight of before the step was used after it"


def test_where_no_samples_can_be_counted_steps_are(tmp_path: Path) -> None:
    arms: dict[str, dict[str, Any]] = {"a": {}, "b": UNFUSED}
    session = launch(tmp_path, ["unusual.py", "objects", "80"], [race(arms), END])
    assert session.code == 0, session.log
    assert session.hello["facts"]["batch_size_per_rank"] == 0
    assert [session.result(arm)["samples_per_step"] for arm in arms] == [1, 1]


def test_what_ceases_to_be_in_force_is_told_once_and_taken_back(tmp_path: Path) -> None:
    session = train(tmp_path, "own_collector", 200, {"num_iteration_per_drop_scope": 10})
    assert "1 of 1 advised settings are in force on every rank." in session.log
    told = "NOT in force any more: num_iteration_per_drop_scope. The script set Python's own garbage collector anew."
    assert session.log.count(told) == 1
