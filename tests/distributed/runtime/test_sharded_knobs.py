"""The knobs of fully_shard in live ranks, sharded once and in copies: proved, undone, and to the same bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from .fake_agent import END, Session, launch, measure, race

fsdp = pytest.importorskip("torch.distributed.fsdp")
pytestmark = pytest.mark.distributed
HAS_ALL = hasattr(getattr(fsdp, "FSDPModule", None), "set_separate_reduce_scatter_group")
all_knobs = pytest.mark.skipif(not HAS_ALL, reason="torch has all of these knobs since 2.13")
"""In an older torch the trials of `tests.releases` ask for each by itself."""

STAGE, GATHER = "sharding_stage", "sharding_gather_ranks"
AHEAD, BACK = "sharding_forward_prefetch", "sharding_backward_prefetch"
SEPARATE, BUFFERS, MEMORY = (
    "sharding_separate_reduction",
    "sharding_reduce_buffers",
    "sharding_group_memory",
)
WIRE, TYPE = "fp16_allreduce", "fp16_allreduce_dtype"
RANKS = 4
STEPS_OF_A_BLOCK = 2 + 1 + 1
Strategies = Sequence[Mapping[str, Any]]


def read(folder: Path, what: str, rank: int) -> list[str]:
    return (folder / f"{what}.{rank}").read_text().splitlines()


def tune(folder: Path, exact: Strategies, inexact: Strategies, *script: str) -> Session:
    """One session of blocks, in the order given; every rank has the bits of the script alone until the inexact ones."""
    plain, tuned = folder / "plain", folder / "tuned"
    plain.mkdir()
    tuned.mkdir()
    # The hello is said after some steps, and what follows the last block takes none.
    samples = 8 * RANKS * (10 + STEPS_OF_A_BLOCK * (len(exact) + len(inexact)))
    words = ["sharded.py", "--steps", str(samples // 16), *script]
    alone = launch(plain, words, patched=False, ranks=RANKS)
    assert alone.code == 0, alone.log
    blocks = [
        measure(str(index), dict(overrides), min_steps=1, max_steps=1, profile_steps=0)
        for index, overrides in enumerate([*exact, *inexact])
    ]
    session = launch(tuned, words, [*blocks, measure("rest", warmup_steps=10_000)], ranks=RANKS)
    assert session.code == 0, session.log
    steps = len(exact) * STEPS_OF_A_BLOCK
    for rank in range(RANKS):
        for what in ("digests", "losses"):
            assert read(tuned, what, rank)[:steps] == read(plain, what, rank)[:steps]
        assert read(tuned, "losses", rank) != read(plain, "losses", rank)
    return session


def gathered_ahead(phase: str, modules: int) -> str:
    what = "1 module" if modules == 1 else f"{modules} modules"
    return f"A {phase} gathered the parameters of up to {what} ahead of their use."


def sharded_again(ranks: int) -> str:
    return f"After a timed forward 3 of 3 inner modules were sharded over {ranks} ranks only."


def apart(reductions: int) -> str:
    return f"{reductions} of 4 reductions went over a communicator of their own."


def under_way(reductions: int) -> str:
    return f"Up to {reductions} reductions kept their buffers at once."


@all_knobs
def test_fully_shards_knobs_are_in_force_and_leave_the_same_bits(tmp_path: Path) -> None:
    exact: list[dict[str, Any]] = [
        {AHEAD: 2, BACK: 2, GATHER: 2},
        {AHEAD: 1, BACK: 1, GATHER: 0, BUFFERS: 2, SEPARATE: True},
        {},
        {STAGE: 2, BACK: 2, GATHER: 2, BUFFERS: 8, SEPARATE: False, MEMORY: True},
        {AHEAD: 8, BACK: 0, BUFFERS: 0, GATHER: 3, SEPARATE: True, MEMORY: True, STAGE: 3},
        {AHEAD: 0, BACK: 8, BUFFERS: 1, MEMORY: False},
    ]
    session = tune(
        tmp_path,
        exact,
        [{WIRE: True, TYPE: "bf16"}, {WIRE: True}, {TYPE: "bf16", WIRE: False}],
        "--allocating",
    )
    assert (
        session.hello["baseline"] | {STAGE: 3, GATHER: 0, AHEAD: 0, BACK: 1, BUFFERS: 1}
        == session.hello["baseline"]
    )
    assert not {WIRE, SEPARATE, BUFFERS, MEMORY, AHEAD, GATHER} & session.hello["refusals"].keys()
    results = [session.result(str(index)) for index in range(9)]
    consumed = [result["consumed"] for result in results]
    refused = [result["not_consumed"] for result in results]
    assert consumed[0] == {
        AHEAD: gathered_ahead("forward", 2),
        BACK: gathered_ahead("backward", 2),
        GATHER: sharded_again(2),
    }
    assert consumed[1] == {
        AHEAD: gathered_ahead("forward", 1),
        BACK: gathered_ahead("backward", 1),
        GATHER: "After a timed forward 0 of 3 inner modules were sharded over fewer ranks than before.",
        BUFFERS: under_way(2),
        SEPARATE: apart(4),
    }
    assert results[1]["no_effect"].keys() == {BACK, GATHER}
    assert consumed[3].keys() == {STAGE, BUFFERS, SEPARATE, MEMORY}
    assert (consumed[3][BUFFERS], consumed[3][SEPARATE]) == (under_way(4), apart(0))
    assert consumed[3][MEMORY] == "4 of 4 groups take their buffers from the communicator's memory."
    assert "stay gathered" in refused[3][BACK]
    assert "stay gathered" in refused[3][GATHER]
    assert consumed[4].keys() == {AHEAD, SEPARATE, MEMORY, STAGE}
    assert consumed[4][AHEAD] == gathered_ahead("forward", 3)
    assert refused[4].keys() == {BACK, BUFFERS, GATHER}
    assert "groups of 3 ranks do not split the 4" in refused[4][GATHER]
    assert consumed[5][BACK] == gathered_ahead("backward", 3)
    assert results[5]["no_effect"].keys() == {AHEAD, BUFFERS, MEMORY}
    assert (consumed[5][BUFFERS], refused[5]) == (under_way(1), {})
    kept = [int(line) for line in read(session.folder, "kept", 1)]
    whole = 32 * 32
    assert sorted(Counter(kept).items())[1:] == [
        (whole // 2, STEPS_OF_A_BLOCK),
        (whole, STEPS_OF_A_BLOCK),
    ], "one block sharded over two ranks, and one kept everything"
    counts = [int(line) for line in read(session.folder, "allocations", 0)]
    begun, ended = (next(i for i, count in enumerate(counts) if count > low) for low in (0, max(counts) - 1))
    assert ended - begun == 2 * STEPS_OF_A_BLOCK - 1, (
        "memory came from the communicator in two blocks, and no other"
    )
    half = "4 of 4 reductions travelled as {}."
    assert consumed[6] == {WIRE: half.format("bf16"), TYPE: half.format("bf16")}
    assert consumed[7] == {WIRE: half.format("fp16")}
    assert refused[8].keys() == {TYPE}
    assert consumed[8] == {WIRE: "4 of 4 reductions travelled in the script's own number format."}


@all_knobs
def test_hybrid_sharding_is_recognised_and_its_knobs_leave_the_same_bits(tmp_path: Path) -> None:
    exact: list[dict[str, Any]] = [
        {AHEAD: 1, BACK: 2},
        {AHEAD: 2, BUFFERS: 2, SEPARATE: True},
        {STAGE: 2, GATHER: 2, MEMORY: True},
    ]
    session = tune(tmp_path, exact, [{WIRE: True}], "--replicas", "2", "--ahead", "2")
    facts, baseline, refusals = (session.hello[part] for part in ("facts", "baseline", "refusals"))
    assert (facts["sharding"], facts["world_size"]) == ("fully_shard", 4)
    assert (facts["shard_ranks"], facts["shard_copies"]) == (2, 2)
    assert facts["gradient_bytes"] == 4 * (3 * (32 * 32 + 32) + 32 + 1)
    assert (baseline[AHEAD], baseline[BACK]) == (2, 1)
    assert "gloo has no memory of its own" in refusals[MEMORY]
    assert "cannot be split" in refusals[GATHER]
    results = [session.result(str(index)) for index in range(4)]
    assert results[0]["consumed"] == {
        AHEAD: gathered_ahead("forward", 1),
        BACK: gathered_ahead("backward", 2),
    }
    assert results[1]["consumed"] == {
        AHEAD: gathered_ahead("forward", 2),
        BUFFERS: under_way(2),
        SEPARATE: apart(4),
    }
    assert results[1]["no_effect"].keys() == {AHEAD}
    assert results[2]["consumed"].keys() == {STAGE}
    assert results[3]["consumed"] == {WIRE: "4 of 4 reductions travelled as fp16."}


def test_sixteen_bits_race_under_the_loss_check(tmp_path: Path) -> None:
    arms: dict[str, dict[str, Any]] = {"base": {}, "half": {WIRE: True}, "apart": {SEPARATE: True, AHEAD: 2}}
    rules = {"loss_check_steps": 2, "min_steps": 3, "max_steps": 6, "profile_steps": 0}
    session = launch(tmp_path, ["sharded.py", "--steps", "400"], [race(arms, **rules), END])
    assert session.code == 0, session.log
    results = {name: session.result(name) for name in arms}
    assert results["half"]["consumed"] == {WIRE: "4 of 4 reductions travelled as fp16."}
    if SEPARATE in session.hello["refusals"]:  # torch has it since 2.13
        assert results["apart"]["not_consumed"].keys() == {SEPARATE}
    else:
        assert results["apart"]["consumed"] == {SEPARATE: apart(4), AHEAD: gathered_ahead("forward", 2)}
    assert all(len(check) == 2 for result in results.values() for check in result["loss_checks"])
    assert results["half"]["loss_checks"]
    assert len(results["base"]["loss_at_start"]) == 2
