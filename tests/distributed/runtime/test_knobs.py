"""What each knob does to a live session: consumed with proof, undone, or refused with a sentence."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from .fake_agent import ABOUT_CPUS, DEVICE, END, Session, launch, measure

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed

INSTRUCTIONS = [
    measure("base"),
    measure("local", {"localsgd": True, "localsgd_k_steps": 3, "localsgd_begin_step": 2}, profile_steps=0),
    measure("fp16", {"fp16_allreduce": True}, profile_steps=0),
    measure("bf16", {"fp16_allreduce": True, "fp16_allreduce_dtype": "bf16", "sync_nccl_allreduce": True}),
    measure("wrong", {"bogus": 1, "nccl_comm_num": 0, "fuse_grad_size_in_MB": -1, "num_threads": 1.5}),
    measure(
        "idle",
        {"hierarchical_allreduce_inter_nranks": 2, "fp16_allreduce_dtype": "bf16", "localsgd_k_steps": 4},
    ),
    measure(
        "gpu", {"FLAGS_fraction_of_gpu_memory_to_use": 0.05, "nccl_comm_num": 4, "fuse_grad_size_in_MB": 50}
    ),
    measure("late", {"localsgd": True, "localsgd_k_steps": 2, "localsgd_begin_step": 500}),
    measure("again"),
    END,
]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("knobs")
    script = ["plain.py", "--name", "knobs", "--steps", "3000", "--digests", "--adam", "--model", "conv"]
    variables = {
        "ADVISOR_COLD": '{"NCCL_ALGO": "Ring"}',
        "NCCL_ALGO": "Ring",
    }
    found = launch(
        folder, [*script, "--workers", "1", "--evaluate-every", "40"], INSTRUCTIONS, variables=variables
    )
    assert found.code == 0, found.log
    return found


def read_digests(session: Session, rank: int) -> list[str]:
    return (session.folder / f"knobs.digests.{rank}").read_text().splitlines()


def test_every_block_has_its_length_and_series(session: Session) -> None:
    for block_id, steps in (("base", 4), ("local", 6), ("again", 4)):
        result = session.result(block_id)
        assert result["steps"] + result["excluded_steps"] == steps
        assert len(result["step_time_s"]) == result["steps"]
        assert len(result["losses"]) == steps
        assert result["samples_per_step"] == 16
        assert len(result["per_rank_step_time_s"]) == 2
        assert not result["diverged"]


@pytest.mark.alone
def test_parts_of_a_step_make_up_the_step(session: Session) -> None:
    parts = session.result("base")["phases"]
    step_s = max(session.result("base")["per_rank_step_time_s"])
    assert 0.5 * step_s < sum(part for part in parts.values() if part) < 1.5 * step_s


def test_inexact_blocks_leave_model_and_optimizer_as_they_were(session: Session) -> None:
    opened = 7  # the forward at which the hello is said and the first block begins
    # local: warm-up min(begin 2 + k 3, max_steps 4), one to settle, 6 timed; fp16: 2 + 1 + 4.
    base = 2 + 1 + 4
    local = 4 + 1 + 6
    fp16 = 2 + 1 + 4
    for rank in range(2):
        digests = read_digests(session, rank)
        if DEVICE != "cpu":  # steps in which DDP is asked come between the blocks
            assert Counter(digests).most_common(1)[0][1] >= 4, (
                "the state before the blocks came back after none"
            )
            continue
        start = opened + base
        assert digests[start] == digests[start + local] == digests[start + local + fp16]
        assert len(set(digests[start : start + local])) > 5
    if DEVICE != "cpu":
        return
    first, second = read_digests(session, 0), read_digests(session, 1)
    assert first[start + local - 1] != second[start + local - 1], "ranks should differ between two averagings"


def test_local_sgd_skips_reductions_and_averages(session: Session) -> None:
    result = session.result("local")
    assert result["period"] == 3
    assert result["consumed"]["localsgd"] == "6 reductions skipped and 2 averagings of parameters."
    assert result["phases"]["exposed_comm_s"] > 0
    assert "beyond the block" in session.result("late")["not_consumed"]["localsgd"]


def test_sixteen_bit_reduction_is_proved(session: Session) -> None:
    assert "travelled as fp16." in session.result("fp16")["consumed"]["fp16_allreduce"]
    assert "travelled as bf16." in session.result("bf16")["consumed"]["fp16_allreduce_dtype"]
    assert "one after another in one lane." in session.result("bf16")["consumed"]["sync_nccl_allreduce"]


@ABOUT_CPUS
def test_a_knob_that_did_nothing_says_so(session: Session) -> None:
    wrong = session.result("wrong")["not_consumed"]
    assert set(wrong) >= {"bogus", "nccl_comm_num", "fuse_grad_size_in_MB", "num_threads"}
    assert "cannot be switched" in wrong["bogus"]
    idle = session.result("idle")["not_consumed"]
    assert set(idle) >= {"hierarchical_allreduce_inter_nranks", "fp16_allreduce_dtype", "localsgd_k_steps"}
    gpu = session.result("gpu")
    assert "trains on CPU" in gpu["not_consumed"]["FLAGS_fraction_of_gpu_memory_to_use"]
    assert "Only 1 of 4" in gpu["not_consumed"]["nccl_comm_num"]
    assert "fuse_grad_size_in_MB" in gpu["consumed"]
    assert "does not read NCCL_ALGO" in gpu["not_consumed"]["NCCL_ALGO"]


def test_baseline_is_undone_to_exactly_what_it_was(session: Session) -> None:
    assert session.result("again")["bucket_bytes"] == session.result("base")["bucket_bytes"]
    # NCCL reads the algorithm that the launch was given, and gloo does not.
    assert session.result("again")["consumed"].keys() == (set() if DEVICE == "cpu" else {"NCCL_ALGO"})


def test_session_ends_at_the_boundary_without_the_final_save(session: Session) -> None:
    assert not list(session.folder.glob("knobs.model.*"))
    assert session.messages[-1]["kind"] == "race"


def test_beats_are_written(session: Session) -> None:
    import importlib.util

    path = Path(__file__).parents[3] / "agent" / "runtime" / "link" / "beat.py"
    spec = importlib.util.spec_from_file_location("beat_alone", path)
    assert spec is not None
    assert spec.loader is not None
    beat = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["beat_alone"] = beat
    spec.loader.exec_module(beat)
    for rank in range(2):
        last = beat.read(beat.locate(str(session.folder / "session"), rank))
        assert last is not None
        assert (last.rank, last.phase) == (rank, "ended")
        assert last.step > 50


@ABOUT_CPUS
@pytest.mark.alone
def test_interrupted_steps_are_left_out(tmp_path: Path) -> None:
    script = ["plain.py", "--steps", "400", "--evaluate-every", "10", "--own-hook", "--bucket-cap-mb", "0.5"]
    block = {"min_steps": 30, "max_steps": 30}
    found = launch(
        tmp_path, script, [measure("a", **block), measure("b", {"fuse_grad_size_in_MB": 0.01}, **block), END]
    )
    assert found.code == 0, found.log
    assert found.result("a")["excluded_steps"] == 3
    # Each of the three holds a sleep of 50 ms; a busy machine may take as long twice.
    assert sorted(found.result("a")["step_time_s"])[-3] < 0.05
    assert found.hello["facts"]["ddp"]["own_comm_hook"]
    assert "hook of its own" in found.hello["refusals"]["nccl_comm_num"]
    assert found.hello["baseline"]["fuse_grad_size_in_MB"] == 0.5
    assert found.hello["baseline"]["last_comm_group_size_MB"] == 0.5
    assert "fuse_grad_size_in_MB" in found.result("b")["consumed"]


def test_partial_block_is_sent_when_the_script_ends(tmp_path: Path) -> None:
    block = measure("a", {"localsgd": True, "localsgd_k_steps": 4}, min_steps=8, max_steps=500, target_s=60)
    found = launch(tmp_path, ["plain.py", "--steps", "60"], [block])
    result = found.result("a")
    assert result["script_ended"]
    assert result["steps"] % 4 == 0
    assert result["steps"] >= 8
    assert found.code == 0, found.log


def test_two_models_and_optimizers_make_one_step(tmp_path: Path) -> None:
    knobs = {"fuse_all_reduce_ops": False, "nccl_comm_num": 2}
    blocks = [measure("local", {"localsgd": True, "localsgd_k_steps": 2}), measure("knobs", knobs), END]
    found = launch(tmp_path, ["two_models.py"], blocks)
    assert found.code == 0, found.log
    facts = found.hello["facts"]
    assert facts["optimizers"] == ["Adam", "Adam"]
    assert "two_models.py" in facts["sources"]
    assert "The script trains 2 models" in found.hello["refusals"]["gradient_merge"]
    assert facts["batch_size_per_rank"] == 8
    assert facts["dataloader"]["num_workers"] == 2
    assert "localsgd" in found.result("local")["consumed"]
    assert set(found.result("knobs")["consumed"]) == set(knobs)
    assert len(found.result("knobs")["bucket_bytes"]) == 8


def test_launched_bucket_size_is_in_force_and_the_baseline_stays_the_scripts(tmp_path: Path) -> None:
    variables = {"ADVISOR_COLD": '{"fuse_grad_size_in_MB": 0.02}'}
    found = launch(tmp_path, ["plain.py", "--steps", "400"], [measure("a"), END], variables=variables)
    assert found.hello["baseline"]["fuse_grad_size_in_MB"] == 25.0
    assert found.hello["baseline"]["last_comm_group_size_MB"] == 1.0
    assert "fuse_grad_size_in_MB" in found.result("a")["consumed"]
    assert len(found.result("a")["bucket_bytes"]) == 2
