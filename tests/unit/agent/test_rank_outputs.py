"""Every line of a session's log says its rank; nothing is lost when a rank dies, and nothing else is redirected."""

import fcntl
import os
import selectors
import socket
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


def hand_over(ranks: RankOutputs, descriptor: int) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.connect(str(ranks.path))
        socket.send_fds(line, [b"0"], [descriptor])


def list_watched(selector: selectors.BaseSelector, but: int) -> set[int]:
    return {key.fd for key in selector.get_map().values()} - {but}


def test_guard_does_not_wait_for_a_pipe_that_a_rank_emptied(tmp_path: Path, written: list[bytes]) -> None:
    """The rank keeps the end that it hands over, empties it in the guard's place, and sets it to blocking."""
    selector = selectors.DefaultSelector()
    ranks = RankOutputs(tmp_path, written.append, selector)
    listening = next(iter(selector.get_map().values())).fd
    reading, writing = os.pipe()
    hand_over(ranks, reading)
    ranks.read({listening}, 0.0)
    (taken,) = list_watched(selector, but=listening)
    fcntl.fcntl(reading, fcntl.F_SETFL, 0)
    os.write(writing, b"taken by the rank itself\n")
    assert [key.fd for key, _ in selector.select(timeout=5)] == [taken]
    os.read(reading, 100)
    ranks.read({taken}, 0.0)  # says ready, and has nothing
    os.write(writing, b"left for the guard\n")
    ranks.drain()  # the writing end is open: nobody will ever end this pipe
    assert written == [b"[rank 0] left for the guard\n"]


def test_only_a_pipe_that_can_be_read_is_taken(tmp_path: Path, written: list[bytes]) -> None:
    """What only root could read must not be read for a rank: a descriptor that only names it is not enough."""
    selector = selectors.DefaultSelector()
    ranks = RankOutputs(tmp_path, written.append, selector)
    listening = next(iter(selector.get_map().values())).fd
    os.mkfifo(tmp_path / "fifo")
    others = [
        os.open(tmp_path / "fifo", os.O_PATH),
        os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT),
        os.open(os.devnull, os.O_RDONLY),
        socket.socketpair()[0].detach(),
        os.pipe()[1],
    ]
    for descriptor in others:
        hand_over(ranks, descriptor)
    ranks.read({listening}, 0.0)
    assert list_watched(selector, but=listening) == set()
