"""Ranks that agree through a store: real stores for what is said, and a counted one for 1,024 ranks in made-up time."""

from __future__ import annotations

import heapq
import importlib
import math
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

pytestmark = pytest.mark.thorough

exchange = importlib.import_module("fleet_advisor_runtime.link.exchange")
Exchange, PeerLost = exchange.Exchange, exchange.PeerLost

MANY = 1024
REQUEST_S, KEY_S, WAY_S = 20e-6, 3e-6, 50e-6
"""The one thread behind the store takes so long for a request (51,000 a second) and for each further key of one; and
the way there, or back."""
HELLO_S, SWITCH_S, GATHER_S = 2.0, 0.2, 0.2


class Simulation:
    """Ranks in threads, of which only the one that is furthest behind in made-up time runs."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, world_size: int = MANY, most_s: float = math.inf
    ) -> None:
        self._most_s = most_s
        monkeypatch.setattr(dist, "PrefixStore", lambda prefix, store: store)
        self.now_s = [0.0] * world_size
        self.requests: Counter[int] = Counter()
        self.beats: Counter[int] = Counter()
        self._free_s = 0.0
        self._data: dict[str, bytes] = {}
        self._due: list[tuple[float, int]] = []
        self._turns = [threading.Semaphore(0) for _ in range(world_size)]
        self._over = threading.Event()
        self._failures: list[BaseException] = []

    def run(self, program: Callable[[int, Any], None]) -> list[float]:
        """When each rank came to the end of the program."""
        size = len(self.now_s)
        self._due = [(0.0, rank) for rank in range(size)]
        threading.stack_size(2**18)
        threads = [
            threading.Thread(target=self._live, args=(rank, program), daemon=True) for rank in range(size)
        ]
        threading.stack_size(0)
        for thread in threads:
            thread.start()
        self._wake_next()
        assert self._over.wait(120)
        if self._failures:
            raise self._failures[0]
        return self.now_s

    def _live(self, rank: int, program: Callable[[int, Any], None]) -> None:
        self._turns[rank].acquire()
        try:
            ranks = Exchange(
                SimulatedStore(self, rank),
                "s",
                rank,
                len(self.now_s),
                lambda: self.beats.update([rank]),
                now_s=lambda: self.now_s[rank],
                sleep=lambda pause_s: self.go_on(rank, self.now_s[rank] + pause_s),
                most_s=self._most_s,
            )
            program(rank, ranks)
        except BaseException as failure:
            self._failures.append(failure)
            self._over.set()
        self._wake_next()

    def _wake_next(self) -> None:
        if self._due:
            self._turns[heapq.heappop(self._due)[1]].release()
        else:
            self._over.set()

    def go_on(self, rank: int, at_s: float) -> None:
        """The rank does nothing until then."""
        self.now_s[rank] = at_s
        if self._due and self._due[0] < (at_s, rank):
            following = heapq.heapreplace(self._due, (at_s, rank))[1]
            self._turns[following].release()
            self._turns[rank].acquire()

    def answer(self, rank: int, keys: int) -> dict[str, bytes]:
        """One request; who came first is served first."""
        self.requests[rank] += 1
        self._free_s = max(self._free_s, self.now_s[rank] + WAY_S) + REQUEST_S + KEY_S * (keys - 1)
        data = self._data
        self.go_on(rank, self._free_s + WAY_S)
        return data


class SimulatedStore:
    """As much of torch's TCPStore as takes part, with a request for each call."""

    def __init__(self, simulation: Simulation, rank: int) -> None:
        self._simulation, self._rank = simulation, rank

    def _ask(self, keys: int = 1) -> dict[str, bytes]:
        return self._simulation.answer(self._rank, keys)

    def set(self, key: str, value: str) -> None:
        self._ask()[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self._ask()[key]

    def add(self, key: str, amount: int) -> int:
        data = self._ask()
        data[key] = str(int(data.get(key, b"0")) + amount).encode()
        return int(data[key])

    def delete_key(self, key: str) -> bool:
        return self._ask().pop(key, None) is not None

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return self._ask().setdefault(key, desired.encode())

    def has_extended_api(self) -> bool:
        return True

    def multi_get(self, keys: list[str]) -> list[bytes]:
        data = self._ask(len(keys))
        return [data[key] for key in keys]


def test_1024_ranks_gather_in_a_fifth_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch)

    def program(rank: int, ranks: Any) -> None:
        values = ranks.gather(rank * 3, "numbers", 60.0)
        assert values == ([3 * other for other in range(MANY)] if rank == 0 else None)

    assert max(simulation.run(program)) < GATHER_S
    assert simulation.requests[0] < 30


def test_1024_ranks_agree_on_a_switch_in_a_fifth_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch)

    def program(rank: int, ranks: Any) -> None:
        failures = ranks.gather("", "whether all could switch", 60.0) or []
        assert ranks.broadcast("".join(failures), "whether all could switch", 60.0) == ""

    assert max(simulation.run(program)) < SWITCH_S


def test_hello_of_1024_ranks_takes_less_than_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch)
    sentence, thinking_s = {f"knob_{place}": "It cannot have an effect here." for place in range(30)}, 5.0

    def program(rank: int, ranks: Any) -> None:
        """The exchanges of Steering._describe_script, and the first instruction."""
        found = ranks.gather(sentence, "what ranks refuse", 60.0)
        ranks.broadcast(found and found[0], "what ranks refuse", 60.0)
        ranks.gather(100, "batches of an epoch", 60.0)
        if rank == 0:
            simulation.go_on(0, simulation.now_s[0] + thinking_s)
        ranks.broadcast("a race", "the agent's instruction", 60.0)

    assert max(simulation.run(program)) - thinking_s < HELLO_S


def test_1024_ranks_that_wait_leave_the_store_free(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch)

    def program(rank: int, ranks: Any) -> None:
        if rank == 0:
            simulation.go_on(0, 10.0)
        assert ranks.broadcast("go", "the agent's instruction", 100.0) == "go"

    ended_s = simulation.run(program)
    assert sum(simulation.requests.values()) < 10 * 6500
    assert max(ended_s) < 10.0 + 2 * SWITCH_S
    assert min(simulation.beats[rank] for rank in range(1, MANY)) > 10  # more than once a second


@pytest.mark.parametrize(
    ("silent", "words"),
    [
        (
            {5},
            "Rank 0 waited 30 s for numbers from rank 5: that rank has ended or hangs. See the log of rank 5.",
        ),
        (
            set(range(40, 60)),
            "from ranks 40, 41, 42, 43, 44, 45, 46, 47 and 12 more: they have ended or hang.",
        ),
    ],
)
def test_ranks_that_are_missing_are_named(
    silent: set[int], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = Simulation(monkeypatch, 64)

    def program(rank: int, ranks: Any) -> None:
        ranks.gather(1, "numbers", 30.0)
        ranks.broadcast(1, "a number", 30.0)
        if rank not in silent:
            ranks.gather(rank, "numbers", 30.0)

    with pytest.raises(PeerLost) as lost:
        simulation.run(program)
    assert words in str(lost.value)


def test_a_rank_that_waits_for_rank_0_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch, 2)

    def program(rank: int, ranks: Any) -> None:
        if rank == 1:
            ranks.broadcast(None, "the agent's instruction", 5.0)

    with pytest.raises(
        PeerLost, match="Rank 1 waited 5 s for the agent's instruction from rank 0: that rank has"
    ):
        simulation.run(program)


@pytest.mark.parametrize("late", [0, 2])
def test_a_rank_that_has_waited_long_enough_gives_up_for_all(
    late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes later learns it at once: no rank goes on with a value that another one has not got."""
    simulation = Simulation(monkeypatch, 3)
    ended_s: dict[int, float] = {}

    def program(rank: int, ranks: Any) -> None:
        if rank == late:
            simulation.go_on(rank, 100.0)
        with pytest.raises(PeerLost):
            ranks.broadcast(ranks.gather(rank, "what ranks refuse", 9.0), "what ranks refuse", 9.0)
        ended_s[rank] = simulation.now_s[rank]
        with pytest.raises(PeerLost):
            ranks.gather(rank, "whether all could switch", 9.0)

    simulation.run(program)
    assert sorted(ended_s) == [0, 1, 2]
    assert all(seconds < 20.0 for rank, seconds in ended_s.items() if rank != late), ended_s
    assert ended_s[late] < 101.0


def test_nobody_waits_to_the_end_for_a_rank_that_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch, 3)

    def program(rank: int, ranks: Any) -> None:
        if rank == 1:
            ranks.leave()
            return
        with pytest.raises(PeerLost, match=r"has ended|gave up"):
            ranks.broadcast(ranks.gather(rank, "what ranks refuse", 60.0), "what ranks refuse", 60.0)

    assert max(simulation.run(program)) < 10.0


def test_a_rank_that_left_behind_its_word_loses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a trial each rank's last results are gathered at the end of its script, which one comes to sooner."""
    simulation = Simulation(monkeypatch, 3)

    def program(rank: int, ranks: Any) -> None:
        simulation.go_on(rank, 10.0 * rank)
        values = ranks.gather(rank, "the last results", 60.0)
        assert values == ([0, 1, 2] if rank == 0 else None)
        ranks.leave()

    simulation.run(program)


def test_no_wait_is_longer_than_what_was_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch, 2, most_s=3.0)

    def program(rank: int, ranks: Any) -> None:
        if rank == 1:
            with pytest.raises(PeerLost, match="waited 3 s"):
                ranks.broadcast(None, "the agent's instruction", 500.0)

    assert max(simulation.run(program)) < 4.0


def make_stores(kind: str, tmp_path: Path) -> list[Any]:
    if kind == "HashStore":
        return [dist.HashStore()] * 3
    if kind == "FileStore":
        return [dist.FileStore(str(tmp_path / "store"), 3) for _ in range(3)]
    first = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    return [first, *(dist.TCPStore("localhost", first.port, wait_for_workers=False) for _ in range(2))]


@pytest.mark.parametrize("kind", ["HashStore", "FileStore", "TCPStore"])
def test_values_arrive_whatever_the_store_and_leave_nothing_behind(kind: str, tmp_path: Path) -> None:
    stores = make_stores(kind, tmp_path)
    done: Counter[int] = Counter()
    heard: dict[int, list[Any]] = {rank: [] for rank in range(3)}

    def live(rank: int) -> None:
        ranks = Exchange(stores[rank], "s", rank, 3, lambda: None, lambda: done.update([rank]))
        for turn in range(12):
            first = ranks.gather([turn, rank], "first", 60.0)
            second = ranks.gather({"turn": turn}, "second", 60.0)  # before rank 0 has read the first
            heard[rank].append(ranks.broadcast([first, second], "both", 60.0))
        ranks.gather(True, "the farewell", 60.0)

    threads = [threading.Thread(target=live, args=(rank,), daemon=True) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    turns = [[[[turn, rank] for rank in range(3)], [{"turn": turn}] * 3] for turn in range(12)]
    assert heard == dict.fromkeys(range(3), turns)
    assert done == dict.fromkeys(range(3), 37)
    # Two slots of two ranks each, and what torch's store keeps for itself.
    assert stores[0].num_keys() <= 2 * 2 + 2
