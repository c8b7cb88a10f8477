"""Every line of a session's log says its rank; nothing is lost when a rank dies, and nothing else is redirected."""

import os
import selectors
import subprocess
import sys
from pathlib import Path

import pytest

from agent.guard.rank_outputs import RankOutputs, TaggedLines

RUNTIME = Path(__file__).resolve().parents[3] / "agent" / "runtime" / "link" / "rank_output.py"
RANK = f"""
import importlib.util, os, subprocess, sys
spec = importlib.util.spec_from_file_location("rank_output", {str(RUNTIME)!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print("before", flush=True)
module.take_own_output(int(sys.argv[1]), os.environ)
print("rank", sys.argv[1])
sys.stdout.flush()
subprocess.run(["sh", "-c", "echo from a child >&2; echo again >> /dev/stdout"], check=True)
os.write(1, b"50 %\\r100 %\\rlast words")
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def written() -> list[bytes]:
    return []


def start(rank: int, output: int, address: str, stdout: int | None = None) -> None:
    environment = {**os.environ, "ADVISOR_OUTPUT": f"{address}:{os.fstat(output).st_ino}"}
    subprocess.run(
        [sys.executable, "-c", RANK, str(rank)],
        stdout=stdout or output,
        stderr=output,
        env=environment,
        check=False,
    )


def test_lines_of_killed_ranks_are_complete_and_tagged(tmp_path: Path, written: list[bytes]) -> None:
    reading, writing = os.pipe()
    ranks = RankOutputs(tmp_path, written.append, selectors.DefaultSelector())
    for rank in (3, 10):
        start(rank, writing, str(ranks.path))
    ranks.drain()
    expected = ["rank {}", "from a child", "again", "50 %", "100 %", "last words"]
    found = b"".join(written).decode().splitlines()
    for rank in (3, 10):
        own = [line for line in found if line.startswith(f"[rank {rank}] ")]
        assert own == [f"[rank {rank}] {line.format(rank)}" for line in expected]
    assert os.read(reading, 1000) == b"before\nbefore\n", "what came earlier is in the common pipe"


def test_output_that_goes_elsewhere_stays_there(tmp_path: Path, written: list[bytes]) -> None:
    _, writing = os.pipe()
    ranks = RankOutputs(tmp_path, written.append, selectors.DefaultSelector())
    with open(tmp_path / "redirected", "ab") as file:
        start(0, writing, str(ranks.path), stdout=file.fileno())
    ranks.drain()
    assert b"rank 0\nagain\n" in (tmp_path / "redirected").read_bytes()
    assert written == [b"[rank 0] from a child\n"]


def test_a_rank_without_a_guard_writes_as_before(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    start(0, writing, str(tmp_path / "nobody"))
    assert b"rank 0\n" in os.read(reading, 1000)


def test_lines_without_an_end_are_passed_on_when_they_grow_too_long(written: list[bytes]) -> None:
    lines = TaggedLines(1, written.append)
    lines.feed(b"x" * 70_000, 0.0)
    lines.feed(b"rest", 0.0)
    lines.flush()
    assert [len(each) for each in written] == [70_000 + len("[rank 1] \n"), len("[rank 1] rest\n")]
