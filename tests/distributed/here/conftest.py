"""Nodes for the tests of `advisor tune --here`: network namespaces, and a command on each that ends with its test."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from advisor.local.testbed import TestbedNode, build_testbed
from advisor.protocol.nodes.testbed import parse_testbed

ROOT = Path(__file__).parents[3]
PATIENCE_S = 240.0
MARK = "NODES_OF_TEST"
TRAINS = """
import time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    time.sleep(0.005)
    optimizer.step()
"""
"""It mostly sleeps: while a whole job is measured, the tests beside it have the processors."""
WAITS = "import time; time.sleep(600)"
COMMAND = ("torchrun", "--nproc-per-node", "1", "train.py")
SHORT = ("--minutes", "1", "--trials", "1", "--block-seconds", "0.2")


@pytest.fixture
def nodes() -> Iterator[tuple[TestbedNode, ...]]:
    with build_testbed(parse_testbed("nodes=3,rate=1gbit")) as built:
        yield built


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The shared folder that the commands run in."""
    (tmp_path / "train.py").write_text(TRAINS)
    return tmp_path


def temporary(folder: Path) -> Path:
    """Where the commands put temporary files: beside the folder, because the agents protect what is in it."""
    beside = folder.with_name(f"{folder.name}-temporary")
    beside.mkdir(exist_ok=True)
    return beside


class Started:
    """A command on one node."""

    def __init__(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path
    ) -> None:
        self.log = log
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ADVISOR_")}
        ours = {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", MARK: str(folder), "TMPDIR": str(temporary(folder))}
        variables = kept | ours | dict(environment)
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command, cwd=folder, env=variables, stdout=file, stderr=file, start_new_session=True
            )

    @property
    def told(self) -> str:
        """All that it said."""
        return self.log.read_text()

    def says(self, words: str) -> None:
        """Wait until it says something."""
        wait_for(
            lambda: re.search(words, self.told) or self.process.poll() is not None, f"{words}: {self.told}"
        )
        assert re.search(words, self.told), self.told

    def ends(self) -> int:
        """Wait until it ends, and return its exit code."""
        wait_for(lambda: self.process.poll() is not None, f"an end: {self.told}")
        return self.process.wait()


Start = Callable[..., Started]


@pytest.fixture
def start(nodes: tuple[TestbedNode, ...], folder: Path) -> Iterator[Start]:
    """Start the verb on a node: its number, options, and variables. Whatever is left in the end is killed."""
    count = 0

    def begin(number: int, *options: str, command: Sequence[str] = COMMAND, **environment: str) -> Started:
        nonlocal count
        count += 1
        verb = (sys.executable, "-m", "advisor", "tune", "--here", *options, "--", *command)
        return Started((*nodes[number].prefix, *verb), folder, environment, folder / f"log-{count}-{number}")

    yield begin
    for process in processes_of(folder):
        with suppress(psutil.Error):
            process.kill()


def by_hand(number: int, nodes: tuple[TestbedNode, ...], count: int = 2) -> tuple[str, ...]:
    """The options of a node that no engine started."""
    return ("--node-rank", str(number), "--nodes", str(count), "--head", nodes[0].address)


def wait_for(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(0.1)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Every process that the commands started, however indirectly."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def find_process(folder: Path, *words: str) -> psutil.Process:
    """The one whose command has all these words, and whose parent has not."""
    found = {}
    for each in processes_of(folder):
        with suppress(psutil.Error):
            if all(word in " ".join(each.cmdline()) for word in words):
                found[each.pid] = each.ppid()
    return psutil.Process(next(pid for pid, parent in found.items() if parent not in found))


def ranks_of(folder: Path) -> list[dict[str, str]]:
    """The environment of each rank that runs."""
    found = []
    for each in processes_of(folder):
        with suppress(psutil.Error):
            if "launch.py" in " ".join(each.cmdline()) and "RANK" in each.environ():
                found.append(each.environ())
    return found


def nothing_is_left(folder: Path) -> None:
    wait_for(lambda: not processes_of(folder), f"nothing is left: {processes_of(folder)}")
    assert not list(folder.rglob("join.json"))
    left = [path.name for path in temporary(folder).iterdir() if not path.name.startswith("torch")]
    assert not left  # torch leaves a cache of its own there, and torchrun its logs


def count_results(folder: Path, state: str = "advisor-train-state") -> dict[str, str]:
    """Every result that the server has accepted, by its id."""
    file = folder / state / "advisor.db"
    with suppress(sqlite3.OperationalError), sqlite3.connect(f"file:{file}?mode=ro", uri=True) as database:
        return {str(row[0]): str(row[1]) for row in database.execute("SELECT block_id, body FROM results")}
    return {}  # the server has yet to make it


def end_all(*started: Started, by: signal.Signals = signal.SIGTERM) -> None:
    """Signal each command itself, as engines do."""
    for each in started:
        each.process.send_signal(by)
