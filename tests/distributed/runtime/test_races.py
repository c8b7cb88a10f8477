"""Arms take turns every few steps in real ranks: training keeps every bit, and each arm's result is its own."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from .fake_agent import ABOUT_CPUS, DEVICE, END, LONGER, Session, launch, measure, race

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed

STEPS = 170 * LONGER
RUNS = {
    "conv": "--model conv --views --accumulate 2",
    "transformer": "--model transformer --adam",
    "branching": "--model branching --find-unused",
    "views": "--model mlp --views --keep-grads",
    "static": "--model mlp --static-graph",
}
ARMS: dict[str, dict[str, Any]] = {
    "base": {},
    "small": {"fuse_grad_size_in_MB": 0.02, "last_comm_group_size_MB": 0.005},
    "groups": {"fuse_grad_size_in_MB": 0.01, "nccl_comm_num": 2},
    "collector": {"num_iteration_per_drop_scope": 4},
    "alone": {"fuse_all_reduce_ops": False},
}
SHORT: dict[str, Any] = {
    "target_s": 2.0,
    "warmup_steps": 3,
    "min_steps": 12,
    "max_steps": 12,
    "segment_steps": 3,
}
REST = measure("rest", warmup_steps=10000)
"""The script goes on to its end."""


def name_steps(run: str) -> list[str]:
    return ["plain.py", "--name", run, "--steps", str(STEPS), *RUNS[run].split()]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs without the runtime, in one launch."""
    folder = tmp_path_factory.mktemp("reference")
    script = ["plain.py"]
    for run in RUNS:
        script += ([] if len(script) == 1 else ["--then"]) + name_steps(run)[1:]
    session = launch(folder, script, patched=False)
    assert session.code == 0, session.log
    return folder


@pytest.mark.parametrize("run", list(RUNS))
def test_a_race_changes_no_bit_of_the_training(run: str, reference: Path, tmp_path: Path) -> None:
    session = launch(tmp_path, name_steps(run), [race(ARMS, **SHORT), REST])
    assert session.code == 0, session.log
    for rank in range(2):
        for what in ("losses", "final"):
            name = f"{run}.{what}.{rank}"
            assert (tmp_path / name).read_text() == (reference / name).read_text(), session.log
    for block_id, overrides in ARMS.items():
        result = session.result(block_id)
        assert result["steps"] == sum(result["segments"]) == len(result["step_time_s"]) == 12
        assert len(result["losses"]) == 12
        assert len(result["segments"]) == len(session.result("base")["segments"])
        assert set(result["consumed"]) | set(result["not_consumed"]) == set(overrides)
        assert not set(result["not_consumed"]) - {"nccl_comm_num"}, result["not_consumed"]
        assert result["drifted"] == result["same_as"] == ""
        assert result["phases"]["exposed_comm_s"] is not None
    assert len({tuple(session.result(name)["bucket_bytes"]) for name in ("base", "small", "alone")}) == 3
    assert session.messages[-1]["kind"] == "script_ended"
    if run == "branching":
        assert "got no gradient in steps" in session.hello["refusals"]["find_unused_parameters"]
        assert "vain_search_s" not in session.hello["facts"]


# One session of several races.

SLOW: dict[str, dict[str, Any]] = {"fast": {}, "slow": {"num_threads": 3}, "small": ARMS["small"]}
SAME: dict[str, dict[str, Any]] = {
    "default": {},
    "idle": {"fuse_grad_size_in_MB": 10, "num_threads": 1},
    "tiny": {"fuse_grad_size_in_MB": 0.02},
    "tiny_too": {"fuse_grad_size_in_MB": 0.0200001},
}
UNABLE: dict[str, dict[str, Any]] = {"first": {}, "unable": ARMS["small"], "able": {"num_threads": 2}}
HOPELESS: dict[str, dict[str, Any]] = {"alone": {}, "hopeless": {"num_threads": 3}}
SLOW_RULES: dict[str, Any] = {"give_up_ratio": 20.0, **SHORT}
"""Several small allreduces may well take three times as long as one; the sleep takes two hundred times as long."""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("races")
    script = ["plain.py", "--steps", "500", "--slow-threads", "3", "--sleep", "0.4", "--settle-at", "240"]
    races = [race(SLOW, **SLOW_RULES), race(HOPELESS, **SLOW_RULES), race(SAME, **SHORT)]
    late = measure("late", warmup_steps=160)
    found = launch(folder, script, [*races, late, race(UNABLE, **SHORT), REST])
    assert found.code == 0, found.log
    return found


@ABOUT_CPUS
@pytest.mark.alone
def test_an_arm_many_times_slower_is_given_up_after_one_or_two_steps(session: Session) -> None:
    slow = session.result("slow")
    assert slow["given_up"]
    assert slow["steps"] in {1, 2}, "being given up is a measurement"
    assert 1 <= slow["warmup_steps"] <= 2
    assert slow["not_consumed"] == {}
    for name in ("fast", "small"):
        assert session.result(name)["steps"] == 12


@pytest.mark.alone
def test_a_race_of_which_only_the_first_arm_is_left_still_measures_it(session: Session) -> None:
    assert session.result("hopeless")["given_up"]
    assert session.result("alone")["steps"] >= 12


@pytest.mark.alone
def test_strategies_that_come_to_the_same_are_one_arm(session: Session) -> None:
    idle = session.result("idle")
    assert idle["same_as"] == "default"
    assert idle["steps"] == 0
    assert "as the baseline's" in idle["no_effect"]["fuse_grad_size_in_MB"]
    assert session.result("tiny")["same_as"] == ""
    assert session.result("tiny")["steps"] == 12
    assert session.result("tiny_too")["same_as"] == "tiny"


@pytest.mark.alone
def test_an_arm_that_needs_a_launch_says_so_and_the_others_race_on(session: Session) -> None:
    assert "tied to this reducer" in session.result("unable")["relaunch_needed"]
    assert session.result("unable")["steps"] == 0
    assert session.result("first")["steps"] == session.result("able")["steps"] == 12


def test_an_inexact_race_puts_everything_back(tmp_path: Path) -> None:
    arms = {
        "plain": {},
        "local": {"localsgd": True, "localsgd_k_steps": 2},
        "half": {"fp16_allreduce": True},
        "exact": {"num_threads": 2},
        "low": {"dgc": True, "dgc_rank": 1},
    }
    script = ["plain.py", "--name", "inexact", "--steps", "400", "--digests", "--adam", "--model", "conv"]
    found = launch(
        tmp_path, script, [race(arms, warmup_steps=3, min_steps=48, max_steps=48, target_s=3.0), REST]
    )
    assert found.code == 0, found.log
    first, second = ((tmp_path / f"inexact.digests.{rank}").read_text().splitlines() for rank in range(2))
    saved = first[7]
    begun = [step for step, digest in enumerate(first) if digest == saved]
    segments = {name: found.result(name)["segments"] for name in arms}
    assert segments == {name: [24, 24] for name in arms}
    # Entered five times, ten segments, and the end. On a CPU DDP is asked in the timed steps themselves, on a card
    # afterwards, of each arm that reduces by DDP.
    assert len(begun) == 5 + 10 + (1 if DEVICE == "cpu" else 5)
    assert [step for step, digest in enumerate(second) if digest == saved] == begun
    assert first[begun[-1] :] == second[begun[-1] :]
    assert first != second, "ranks differ between two averagings"
    for name, overrides in arms.items():
        result = found.result(name)
        assert set(result["consumed"]) == set(overrides), result["not_consumed"]
        assert len(result["losses"]) == 48
    assert found.result("local")["period"] == 2


def test_timed_steps_never_ask_the_ranks_store(tmp_path: Path) -> None:
    rules = {"warmup_steps": 3, "min_steps": 60, "max_steps": 60, "target_s": 60}
    found = launch(tmp_path, ["plain.py", "--steps", "400", "--count-store"], [measure("a", **rules), END])
    assert found.result("a")["steps"] == 60, found.log
    for rank in range(2):
        counts = [int(line) for line in (tmp_path / f"run.requests.{rank}").read_text().split()]
        quiet = [len(list(same)) for _, same in itertools.groupby(counts)]
        assert max(quiet) >= 60
        assert len(quiet) > 2, "the hello and the results go through the store"


def test_results_of_complete_cycles_are_sent_when_the_script_ends(tmp_path: Path) -> None:
    rules = {"warmup_steps": 3, "min_steps": 6, "max_steps": 5000, "target_s": 60, "segment_steps": 3}
    found = launch(tmp_path, ["plain.py", "--steps", "120"], [race({"a": {}, "b": ARMS["small"]}, **rules)])
    assert found.code == 0, found.log
    results = [found.result(name) for name in ("a", "b")]
    assert all(result["script_ended"] for result in results)
    assert results[0]["segments"] == results[1]["segments"]
    assert len(results[0]["segments"]) > 3
    # Longer where swapping took more of a turn than it may, as on a busy machine.
    assert min(results[0]["segments"]) >= 3


def test_a_lone_strategy_keeps_what_it_timed_of_the_turns_that_the_script_left(tmp_path: Path) -> None:
    rules = {"warmup_steps": 3, "min_steps": 6, "max_steps": 5000, "target_s": 60, "segment_steps": 4}
    found = launch(tmp_path, ["plain.py", "--steps", "120"], [measure("a", **rules)])
    result = found.result("a")
    assert result["script_ended"], found.log
    assert result["steps"] > 80


def test_a_race_that_the_script_left_too_early_is_void(tmp_path: Path) -> None:
    rules = {"warmup_steps": 3, "min_steps": 30, "max_steps": 5000, "target_s": 60, "segment_steps": 3}
    arms = race({"a": {}, "b": ARMS["small"]}, **rules)
    found = launch(tmp_path, ["plain.py", "--steps", "60"], [measure("first"), arms])
    assert found.messages[-1]["kind"] == "script_ended"
    assert found.messages[-1]["race_id"] == "a"


def test_two_models_of_one_step_race_with_buckets_of_their_own(tmp_path: Path) -> None:
    arms = {"base": {}, "alone": {"fuse_all_reduce_ops": False}, "groups": {"nccl_comm_num": 2}}
    found = launch(tmp_path, ["two_models.py"], [race(arms, **SHORT)])
    assert found.code == 0, found.log
    assert [len(found.result(name)["bucket_bytes"]) for name in arms] == [2, 8, 2]
    assert {found.result(name)["steps"] for name in arms} == {12}
    assert {found.result(name)["drifted"] for name in arms} == {""}


def test_a_subclass_of_ddp_with_a_forward_of_its_own_is_measured(tmp_path: Path) -> None:
    session = launch(tmp_path, ["plain.py", "--own-forward", "--steps", "60"], [measure("a"), END])
    result = session.result("a")
    assert (result["steps"], result["samples_per_step"]) == (4, 16), session.log
    facts = session.hello["facts"]
    assert facts["microbatches_per_step"] == 1
    # What a rank's model is given: whole rows for each of its samples.
    assert facts["numbers_per_step"] >= facts["batch_size_per_rank"] > 0
    assert facts["numbers_per_step"] % facts["batch_size_per_rank"] == 0
    assert not facts["tells_samples"]


def test_parameters_that_drift_apart_void_the_race_and_all_later_ones(tmp_path: Path) -> None:
    races = [race({"a": {}, "b": ARMS["small"]}, **SHORT), race({"c": {}, "d": ARMS["small"]}, **SHORT), END]
    found = launch(tmp_path, ["plain.py", "--steps", "500", "--drift-at", "25"], races)
    assert found.code == 0, found.log
    assert all("broken their agreement" in found.result(name)["drifted"] for name in "abcd")
    assert [found.result(name)["steps"] for name in "cd"] == [12, 12]


# The loss check.

APART: dict[str, Any] = {"localsgd": True, "localsgd_k_steps": 3}
CHECKED: dict[str, Any] = {
    "target_s": 2.0, "warmup_steps": 2, "min_steps": 12, "max_steps": 72, "segment_steps": 12, "loss_check_steps": 5,
}  # fmt: skip


@pytest.mark.parametrize("model", ["transformer", "conv"])
def test_a_state_that_learned_nothing_loses_the_same_on_the_same_batches(model: str, tmp_path: Path) -> None:
    """Dropout drops the same units, and the loader gives the same batches: all figures are equal to the last bit."""
    script = ["plain.py", "--model", model, "--lr", "0", "--steps", "400"]
    session = launch(tmp_path, script, [race({"base": {}, "apart": APART}, **CHECKED), END])
    for result in (session.result("base"), session.result("apart")):
        start = result["loss_at_start"]
        assert len(set(start)) == 5
        assert len(result["loss_checks"]) == len(result["segments"]) >= (2 if DEVICE == "cpu" else 1)
        if model == "transformer":  # batch normalisation changes by reading
            assert all(check == start for check in result["loss_checks"]), (start, result["loss_checks"])


def test_launches_are_checked_on_other_batches(tmp_path: Path) -> None:
    """And all arms of a launch on the same: nothing is learned, so that only the batches can differ."""
    script, starts = ["plain.py", "--lr", "0", "--steps", "400"], []
    for offset in (0, 7):
        rules = {**CHECKED, "loss_check_offset": offset}
        folder = tmp_path / str(offset)
        folder.mkdir()
        session = launch(folder, script, [race({"base": {}, "apart": APART}, **rules), END])
        result = session.result("apart")
        assert all(check == result["loss_at_start"] for check in result["loss_checks"]), session.log
        starts.append(set(result["loss_at_start"]))
    assert len(starts[0]) == len(starts[1]) == 5
    assert not starts[0] & starts[1]


def test_checks_teach_nothing_and_end_with_the_training_as_it_was(tmp_path: Path) -> None:
    """A second race, from the state that the first one put back, loses the same on the same batches."""
    arms = {"base": {}, "apart": APART}
    script = ["one_batch.py"]
    races = [race({f"{name}{i}": o for name, o in arms.items()}, **CHECKED) for i in range(2)]
    session = launch(tmp_path, script, [*races, END])
    first, second = session.result("base0"), session.result("base1")
    assert first["loss_at_start"] == second["loss_at_start"], session.log
    assert min(first["loss_at_start"]) > max(first["loss_checks"][0]), "the segment itself teaches"
    assert session.result("apart0")["loss_checks"][0] != first["loss_checks"][0]
    assert session.result("apart0")["drifted"] == ""
