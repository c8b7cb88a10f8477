"""Sharded models: what can be tuned is, without another bit in the training; what cannot is refused with a sentence."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from .fake_agent import BACKEND, END, launch, measure

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed

STEPS_OF_A_BLOCK = 2 + 1 + 4
EXACT = [
    {},
    {"sharding_stage": 2},
    {"sharding_stage": 3, "num_threads": 2, "loader_num_workers": 1, "num_iteration_per_drop_scope": 4},
    {"fuse_grad_size_in_MB": 4.0, "nccl_comm_num": 2, "sharding_stage": 1},
]


def read(folder: Path, what: str, rank: int) -> list[str]:
    return (folder / f"{what}.{rank}").read_text().splitlines()


def test_fully_sharded_training_is_tuned_and_ends_in_the_same_bits(tmp_path: Path) -> None:
    plain, tuned = tmp_path / "plain", tmp_path / "tuned"
    plain.mkdir()
    tuned.mkdir()
    assert launch(plain, ["sharded.py"], patched=False).code == 0
    blocks = [measure(str(index), overrides) for index, overrides in enumerate(EXACT)]
    inexact = measure("inexact", {"fuse_all_optimizer_ops": True})
    session = launch(tuned, ["sharded.py"], [*blocks, inexact, measure("rest", warmup_steps=10_000)])
    assert session.code == 0, session.log
    facts, baseline, refusals = (session.hello[part] for part in ("facts", "baseline", "refusals"))
    assert facts["sharding"] == "fully_shard"
    assert facts["gradient_bytes"] == facts["largest_parameter_bytes"] * 3 + 4 * (3 * 32 + 32 + 1)
    assert facts["backend"] == BACKEND
    assert (facts["batch_size_per_rank"], facts["layers"]) == (8, 4)
    assert baseline["sharding_stage"] == 3
    assert "fuse_grad_size_in_MB" not in baseline
    assert "sharded by fully_shard" in refusals["fuse_grad_size_in_MB"]
    assert session.result("0")["phases"]["exposed_comm_s"] is None
    gathered = "After a timed forward {} of 3 inner modules held their gathered parameters."
    assert session.result("1")["consumed"] == {"sharding_stage": gathered.format(3)}
    assert session.result("2")["not_consumed"] == {}
    assert session.result("2")["consumed"]["sharding_stage"] == gathered.format(0)
    assert set(session.result("2")["consumed"]) == set(EXACT[2])
    wrong = session.result("3")["not_consumed"]
    assert set(wrong) == set(EXACT[3])
    assert "1 is not a whole number of at least 2" in wrong["sharding_stage"]
    assert "_fused_adam" in session.result("inexact")["consumed"]["fuse_all_optimizer_ops"]
    for rank in range(2):
        digests, expected = read(tuned, "digests", rank), read(plain, "digests", rank)
        [restored] = [digest for digest, count in Counter(digests).items() if count == 2]
        begun, ended = [index for index, digest in enumerate(digests) if digest == restored]
        assert ended - begun == STEPS_OF_A_BLOCK
        assert begun > len(EXACT) * STEPS_OF_A_BLOCK
        assert digests[: begun + 1] == expected[: begun + 1]
        assert read(tuned, "losses", rank)[:begun] == read(plain, "losses", rank)[:begun]


def test_a_wrapper_that_shards_is_tuned_where_it_can_be(tmp_path: Path) -> None:
    knobs = {"sharding_stage": 2, "num_threads": 2, "loader_num_workers": 1}
    session = launch(tmp_path, ["sharded.py", "--wrapper"], [measure("a", knobs), END])
    assert session.code == 0, session.log
    facts = session.hello["facts"]
    assert (facts["sharding"], facts["shard_ranks"], facts["shard_copies"]) == (
        "FullyShardedDataParallel",
        2,
        1,
    )
    assert facts["gradient_bytes"] >= 12_804
    assert set(session.result("a")["consumed"]) == {"num_threads", "loader_num_workers"}
    assert "fully_shard, which can change it" in session.result("a")["not_consumed"]["sharding_stage"]


def test_ranks_of_one_tensor_parallel_model_count_their_samples_once(tmp_path: Path) -> None:
    session = launch(tmp_path, ["tensor_parallel.py"], [measure("a", {}), END])
    assert session.code == 0, session.log
    assert session.hello["facts"]["batch_size_per_rank"] == 4
    assert session.result("a")["samples_per_step"] == 8
