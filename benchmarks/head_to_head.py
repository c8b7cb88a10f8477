"""Head to head: the same seeded faults against this service, Optuna's storages and open-source Vizier.

A worker (`head_to_head_worker.py`, a process of its own) begins a trial, measures a value that no other trial has, and
hands it in. Meanwhile one fault happens: the worker is killed while it measures or while it hands in, its answer is
lost so that it repeats itself, it is paused beyond its lease and comes back, it is gone for good, the service is killed
at any moment while it is asked or told, or two workers hand in different values for one trial. Afterwards the service
gets time to notice, a healthy worker measures twice more, and the database is asked.

    lost        values that a worker had measured and handed in or tried to, and that the database has nowhere;
                in brackets those that the service had acknowledged
    twice       values counted for two trials, and trials of two writers where what was acknowledged is overwritten
    orphaned    trials that count as being measured, and nobody measures them
    stuck       calls that had no answer 60 s after they were made and after the service was back

Each peer is set up as its documentation advises: Optuna's RDB storage with heartbeat and its retry callback under
`study.optimize`, its gRPC proxy before the same PostgreSQL (it has no heartbeat), Vizier with a stable client id for
each worker. All of them repeat calls that fail. Optuna on SQLite has no server: there the worker itself is killed
in the call. On PostgreSQL the database is what is killed (of this service and of the proxy: they and it in turn).

    python benchmarks/head_to_head.py --rounds 6 --seeds 1 2 3 --optuna /somewhere/optuna/bin/python \
        --vizier /somewhere/vizier/bin/python
"""

import argparse
import collections
import json
import queue
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from head_to_head_services import STUCK_S, Advisor, Dump, Peer, Service, list_services

ROOT = Path(__file__).parents[1]
PAUSE_S = 5.0
"""Longer than a lease and its grace, and than Optuna's two heartbeats."""
MOST_DELAY_S = 0.08


class Worker:
    """A worker's process, and its answers."""

    def __init__(self, service: Service, study: str, name: str) -> None:
        self.name = name
        words = [
            service.python, str(ROOT / "benchmarks" / "head_to_head_worker.py"), service.kind, service.url, study,
            name, str(service.folder),
        ]  # fmt: skip
        self.log = open(service.folder / "workers.log", "ab")  # noqa: SIM115
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        self.answers: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        answer = self.hear(5 * STUCK_S)
        if "ok" not in answer:
            raise RuntimeError(f"{service.name}: the worker {name} does not start: {answer}")

    def _listen(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("{"):
                self.answers.put(json.loads(line))

    def say(self, what: str, *words: Any) -> None:
        """Give an order."""
        assert self.process.stdin
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"do": what, "with": words}) + "\n")
            self.process.stdin.flush()

    def hear(self, patience_s: float = STUCK_S) -> dict[str, Any]:
        """What became of the order: ok, refused, failed, or stuck."""
        try:
            return self.answers.get(timeout=patience_s)
        except queue.Empty:
            return {"stuck": f"no answer within {patience_s:g} s"}

    def do(self, what: str, *words: Any) -> dict[str, Any]:
        """Give an order, and hear what became of it."""
        self.say(what, *words)
        return self.hear()

    def kill(self) -> None:
        """As a power cut would."""
        self.process.kill()
        self.process.wait()
        self.log.close()


@dataclass
class Count:
    """What went wrong under one fault."""

    rounds: int = 0
    lost: int = 0
    acknowledged: int = 0
    """Of those lost."""
    twice: int = 0
    orphaned: int = 0
    stuck: int = 0

    def add(self, other: "Count") -> None:
        """Take another one's figures into this one."""
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def __str__(self) -> str:
        """As a cell of the table."""
        lost = f"{self.lost}" + (f" ({self.acknowledged})" if self.acknowledged else "")
        return f"{lost} / {self.twice} / {self.orphaned} / {self.stuck}"


@dataclass
class Study:
    """One fault against one service with one seed."""

    service: Service
    name: str
    chance: random.Random
    count: Count = field(default_factory=Count)
    answers: dict[float, str] = field(default_factory=dict)
    """Value -> what its worker was told: ok, refused, failed, stuck, or nothing."""
    rivals: list[tuple[float, float]] = field(default_factory=list)
    """Values that two workers had for one trial."""
    crew: list[Worker] = field(default_factory=list)
    """Workers that earlier studies left: to start one takes longer than a round."""

    def hire(self) -> Worker:
        """A worker that had no part in this study."""
        while self.crew:
            worker = self.crew.pop()
            if "ok" in worker.do("move", self.name):
                return worker
            worker.kill()
        return Worker(self.service, self.name, f"{self.name}-{time.monotonic_ns()}")

    def back(self, worker: Worker) -> Worker:
        """The same worker after its death."""
        return Worker(self.service, self.name, worker.name)

    def measure(self) -> float:
        """A value like no other."""
        value = round(self.chance.uniform(0.001, 1.0), 12)
        self.answers[value] = ""
        return value

    def ask(self, worker: Worker) -> tuple[Worker, Any]:
        """Begin a trial with nothing else going on; a stuck worker is replaced by a new one."""
        for _ in range(4):
            answer = worker.do("ask")
            if "ok" in answer:
                time.sleep(self.chance.uniform(0.2, 1.0))  # it measures: heartbeats have begun by now
                return worker, answer["ok"]
            worker = self._replace(worker, answer)
        raise RuntimeError(f"{self.service.name} serves nobody any more: {answer}")

    def tell(self, worker: Worker, order: str = "tell") -> Worker:
        """Measure and hand in."""
        value = self.measure()
        return self.note(worker, value, worker.do(order, value))

    def note(self, worker: Worker, value: float, answer: dict[str, Any]) -> Worker:
        """Write down what a worker was told; return it, or another one in its place."""
        ((self.answers[value], _),) = answer.items()
        return self._replace(worker, answer) if answer.keys() & {"stuck", "failed"} else worker

    def _replace(self, worker: Worker, answer: dict[str, Any]) -> Worker:
        print(f"    {self.service.name}, {self.name}: {answer}", flush=True)
        self.count.stuck += 1
        worker.kill()
        return self.hire()

    # The faults. Each takes two healthy workers, and returns two.

    def killed_while_measuring(self, one: Worker, two: Worker) -> tuple[Worker, Worker]:
        """Before there is a result."""
        one, _ = self.ask(one)
        one.kill()
        return self.back(one), two

    def killed_while_handing_in(self, one: Worker, two: Worker) -> tuple[Worker, Worker]:
        """At any moment from when the result exists, also before it stands written down anywhere."""
        one, _ = self.ask(one)
        one.say("tell", self.measure())
        time.sleep(self.chance.uniform(0.0, MOST_DELAY_S))
        with suppress(queue.Empty):
            ((self.answers[list(self.answers)[-1]], _),) = one.answers.get_nowait().items()
        one.kill()
        return self.back(one), two

    def answer_lost(self, one: Worker, two: Worker) -> tuple[Worker, Worker]:
        """The worker hears nothing, and hands the same in again."""
        one, _ = self.ask(one)
        value = self.measure()
        one = self.note(one, value, one.do("tell", value))
        one.do("again", value)
        return one, two

    def paused_beyond_lease(self, one: Worker, two: Worker) -> tuple[Worker, Worker]:
        """Others go on meanwhile; then it comes back with its result."""
        one, _ = self.ask(one)
        one.process.send_signal(signal.SIGSTOP)
        time.sleep(PAUSE_S)
        two, _ = self.ask(two)
        two = self.tell(two)
        one.process.send_signal(signal.SIGCONT)
        return self.tell(one), two

    def gone_for_good(self, one: Worker, two: Worker) -> tuple[Worker, Worker]:
        """Its node is taken away."""
        one, _ = self.ask(one)
        one.kill()
        return self.hire(), two

    def service_killed_while_asked(self, one: Worker, two: Worker) -> tuple[Worker, Worker]:
        """At any moment."""
        one.say("ask")
        time.sleep(self.chance.uniform(0.0, MOST_DELAY_S))
        if not self.service.kill(self.chance):
            one.kill()
            return self.back(one), two
        answer = one.hear()
        if "ok" not in answer:
            return self._replace(one, answer), two
        return self.tell(one), two

    def service_killed_while_told(self, one: Worker, two: Worker) -> tuple[Worker, Worker]:
        """At any moment."""
        one, _ = self.ask(one)
        value = self.measure()
        one.say("tell", value)
        time.sleep(self.chance.uniform(0.0, MOST_DELAY_S))
        if not self.service.kill(self.chance):
            one.kill()
            return self.back(one), two
        return self.note(one, value, one.hear()), two

    def two_writers(self, one: Worker, two: Worker) -> tuple[Worker, Worker]:
        """Of one trial, at one moment."""
        one, trial = self.ask(one)
        helper = self.hire()
        helper.do("adopt", trial)
        values = self.measure(), self.measure()
        self.rivals.append(values)
        one.say("tell", values[0])
        helper.say("again", values[1])
        one = self.note(one, values[0], one.hear())
        self.note(helper, values[1], helper.hear()).kill()  # it took another one's name
        return one, two

    def play(self, fault: Callable[["Study", Worker, Worker], tuple[Worker, Worker]], rounds: int) -> Count:
        """Play the rounds, give the service time, and count."""
        one, two = self.hire(), self.hire()
        for _ in range(rounds):
            self.service.prepare(self.name)
            one, two = fault(self, one, two)
            self.count.rounds += 1
        time.sleep(PAUSE_S)
        self.service.prepare(self.name)
        for _ in range(2):
            one, _ = self.ask(one)
            one = self.tell(one)
        dumped: tuple[Dump, set[float]] = ([], set())
        if isinstance(self.service, Peer):
            dumped = two.do("dump")["ok"], set()
        for worker in (one, two):
            worker.do("move", "idle")
            self.crew.append(worker)
        if isinstance(self.service, Advisor):
            # Workers that left may have been given a place since, which they never take up.
            deadline = time.monotonic() + STUCK_S
            dumped = self.service.dump(self.name)
            while any(is_running for *_, is_running in dumped[0]) and time.monotonic() < deadline:
                time.sleep(1.0)
                dumped = self.service.dump(self.name)
            self.service.retire(self.name)
        self.judge(*dumped)
        return self.count

    def judge(self, trials: Iterable[tuple[str, Sequence[float], bool]], kept: set[float]) -> None:
        """Compare what was measured with what the database holds."""
        trials = list(trials)
        counted = collections.Counter(round(value, 12) for _, values, _ in trials for value in values)
        orphans = [name for name, _, is_running in trials if is_running]
        self.count.orphaned += len(orphans)
        self.count.twice += sum(times > 1 for times in counted.values())
        overwritten = [
            {value for value in pair if self.answers[value] == "ok" and value not in counted}
            for pair in self.rivals
        ]
        self.count.twice += sum(map(bool, overwritten))
        for value, answer in self.answers.items():
            if value not in counted and value not in kept.union(*overwritten):
                self.count.lost += 1
                self.count.acknowledged += answer == "ok"


FAULTS: dict[str, Callable[[Study, Worker, Worker], tuple[Worker, Worker]]] = {
    "worker killed while it measures": Study.killed_while_measuring,
    "worker killed while it hands in": Study.killed_while_handing_in,
    "answer lost, handed in again": Study.answer_lost,
    "worker paused beyond its lease, then back": Study.paused_beyond_lease,
    "worker gone for good": Study.gone_for_good,
    "service killed while asked": Study.service_killed_while_asked,
    "service killed while told": Study.service_killed_while_told,
    "two writers of one trial": Study.two_writers,
}


def play_service(
    key: str, make: Callable[[Path], Service], chosen: argparse.Namespace
) -> tuple[str, dict[str, Count]]:
    """Play the faults against one service; a new one for each seed. Returns its name and the counts."""
    cells, name = {fault: Count() for fault in FAULTS}, key
    for seed in chosen.seeds:
        folder = Path(tempfile.mkdtemp(prefix="h2h"))
        service, crew = make(folder), list[Worker]()
        name = service.name
        try:
            for number, (fault, play) in enumerate(FAULTS.items()):
                if chosen.faults and not any(word in fault for word in chosen.faults):
                    continue
                study = Study(service, f"{key}-{seed}-{number}", random.Random(f"{seed}-{fault}"), crew=crew)
                count = study.play(play, chosen.rounds)
                cells[fault].add(count)
                print(f"{name}, seed {seed}, {fault}: {count}", flush=True)
        finally:
            for worker in crew:
                worker.kill()
            service.close()
            shutil.rmtree(folder, ignore_errors=True)
    return name, cells


def main() -> None:
    """Play all faults against all services with all seeds, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6, help="of each fault, for each seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--optuna", help="Python that has requirements-head-to-head-optuna.txt")
    parser.add_argument("--vizier", help="Python that has requirements-head-to-head-vizier.txt")
    parser.add_argument("--only", nargs="+", help="advisor-sqlite, optuna-grpc, …")
    parser.add_argument("--faults", nargs="+", help="only faults with one of these words")
    parser.add_argument(
        "--at-once", type=int, default=1, help="services that are put to the test side by side"
    )
    chosen = parser.parse_args()
    with ThreadPoolExecutor(chosen.at_once) as threads:
        services = list_services(chosen)
        played = threads.map(lambda key: play_service(key, services[key], chosen), services)
        counts = dict(played)
    print("\nlost (acknowledged) / twice / orphaned / stuck\n")
    print("| fault | rounds | " + " | ".join(counts) + " |")
    print("|---|---:|" + "---|" * len(counts))
    for fault in FAULTS:
        row = [cells[fault] for cells in counts.values()]
        print(f"| {fault} | {max(c.rounds for c in row)} | " + " | ".join(map(str, row)) + " |")
    totals = []
    for cells in counts.values():
        totals.append(Count())
        for count in cells.values():
            totals[-1].add(count)
    print(f"| **all** | {max(c.rounds for c in totals)} | " + " | ".join(f"**{t}**" for t in totals) + " |")


if __name__ == "__main__":
    main()
