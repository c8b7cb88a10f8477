"""A soak: a real server and agents that speak its protocol, under seeded faults; then the database is asked.

Every race that an agent has run is written into a ledger before it is handed in, as its spool does, and handed in until
the server decides. Faults: the server killed (SIGKILL) and started again, or stopped for a while (SIGSTOP); the
database's write lock held by somebody else; answers lost after the server has acted; the same report twice, or changed;
agents that sleep beyond their lease and speak up again; agents that are killed and register anew.

In the end: no report is lost (the server's own answer is what the database holds), none is counted twice, the rules of
`advisor admin check` hold, and memory and descriptors have not grown. Exit code 1 where any of that fails.

    python benchmarks/soak.py --minutes 5 --agents 8 --seed 1
"""

import argparse
import collections
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from faulty_agent import Counts, FaultyAgent  # noqa: E402

from advisor.app import make_id  # noqa: E402
from advisor.protocol.jobs import Budget, JobSpec  # noqa: E402
from advisor.protocol.workload import Workload  # noqa: E402
from advisor.storage import Database  # noqa: E402

QUICK = {
    "ADVISOR_LEASE_S": "4", "ADVISOR_GRACE_S": "1", "ADVISOR_TICK_S": "0.2", "ADVISOR_POLL_S": "2",
    "ADVISOR_ASSEMBLE_S": "10", "ADVISOR_BEAT_S": "1",
}  # fmt: skip


class Server:
    """`advisor serve` on one port and one database, whatever happens to its process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.starts = 0
        self.start()

    def start(self) -> None:
        """Start the process, and wait until it serves."""
        known = {name: value for name, value in os.environ.items() if not name.startswith("ADVISOR_")}
        words = [
            sys.executable,
            "-m",
            "advisor",
            "serve",
            "--port",
            str(self.port),
            "--data-dir",
            str(self.folder),
        ]
        with open(self.folder / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                words, env=known | QUICK | {"PYTHONPATH": str(ROOT)}, stdout=log, stderr=log
            )
        self.starts += 1
        while not self.is_ready():
            if self.process.poll() is not None:
                log = (self.folder / "server.log").read_text(errors="replace")
                raise RuntimeError(f"The server does not start: {log[-500:]}")
            time.sleep(0.1)

    def is_ready(self) -> bool:
        """Whether it serves."""
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/readyz", timeout=2).is_success
        return False

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.kill()
        self.process.wait()

    def use(self) -> tuple[int, int]:
        """Resident bytes and open descriptors."""
        process = psutil.Process(self.process.pid)
        return process.memory_info().rss, process.num_fds()


def strike_server(server: Server, seed: str, counts: Counts, over: threading.Event, pause_s: float) -> None:
    """Faults of the server's side, one after another."""
    chance = random.Random(seed)
    while not over.wait(chance.uniform(0.5, 1.5) * pause_s):
        fault = chance.choice(["server killed", "server stopped", "database locked"])
        counts.faults[fault] += 1
        if fault == "server killed":
            server.kill()
            over.wait(chance.uniform(0.0, 1.0))
            try:
                server.start()
            except RuntimeError as error:
                counts.unexpected.append(str(error))
                return
        elif fault == "server stopped":
            server.process.send_signal(signal.SIGSTOP)
            over.wait(chance.uniform(1.0, 8.0))
            server.process.send_signal(signal.SIGCONT)
        else:
            other = sqlite3.connect(server.folder / "advisor.db", timeout=5, isolation_level=None)
            with suppress(sqlite3.OperationalError):
                other.execute("BEGIN IMMEDIATE")
                over.wait(chance.uniform(0.5, 3.0))
                other.execute("ROLLBACK")
            other.close()


def keep_jobs(server: Server, count: int, over: threading.Event, counts: Counts) -> None:
    """See that there are so many jobs that are not over."""
    token = (server.folder / "admin-token").read_text().strip()
    http = httpx.Client(
        base_url=f"{server.url}/api/v1", timeout=10, headers={"Authorization": f"Bearer {token}"}
    )
    spec = JobSpec(
        workload=Workload(command=("torchrun", "train.py")),
        nodes=2,
        budget=Budget(max_trials=6, max_seconds=120),
    ).model_dump(mode="json")
    while not over.wait(0.5):
        with suppress(httpx.HTTPError, ValueError, KeyError):
            alive = [
                job for job in http.get("/jobs", params={"limit": 100}).json()["items"]
                if job["state"] in {"queued", "running", "cancelling"}
            ]  # fmt: skip
            if len(alive) < count:
                key = {"Idempotency-Key": str(len(counts.sessions)) + str(time.monotonic_ns())}
                http.post("/jobs", json=spec, headers=key)


def judge(folder: Path, counts: Counts) -> list[str]:
    """Ask the database; return what is wrong, in sentences."""
    wrong = list(counts.unexpected[:10])
    undecided = [report for report in counts.reports if not report.answer]
    if undecided:
        wrong.append(f"{len(undecided)} reports were never decided about, e.g. {undecided[0].path}")
    by_block: collections.defaultdict[str, list[str]] = collections.defaultdict(list)
    for report in counts.reports:
        for block in report.body["results"]:
            by_block[block].append(report.answer)
    twice = [block for block, answers in by_block.items() if answers.count("accepted") > 1]
    if twice:
        wrong.append(f"{len(twice)} blocks have two accepted reports: {twice[:3]}")
    told = {
        answer: {block for block, answers in by_block.items() if answer in answers}
        for answer in ("accepted", "quarantined")
    }
    database = Database(f"sqlite:///{folder / 'advisor.db'}", make_id)
    with database.read() as work:
        wrong += work.upkeep.find_lost(**told) + work.upkeep.find_damage()
    database.close()
    return wrong


def main() -> None:
    """Soak, judge, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.02, help="faults per message of an agent")
    parser.add_argument("--pause", type=float, default=6.0, help="mean seconds between faults of the server")
    chosen = parser.parse_args()
    counts, over = Counts(), threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        agents = [
            FaultyAgent(server.url, server.folder, f"a{i}", f"{chosen.seed}-{i}", counts, over, chosen.rate)
            for i in range(chosen.agents)
        ]
        helpers = [
            threading.Thread(
                target=strike_server, args=(server, f"s{chosen.seed}", counts, over, chosen.pause)
            ),
            threading.Thread(target=keep_jobs, args=(server, max(1, chosen.agents // 2), over, counts)),
        ]
        for thread in (*agents, *helpers):
            thread.start()
        uses: list[tuple[float, int, int]] = []
        began = time.monotonic()
        while (passed := time.monotonic() - began) < 60 * chosen.minutes:
            time.sleep(min(5.0, max(0.1, 60 * chosen.minutes - passed)))
            with suppress(psutil.Error):
                uses.append((passed, *server.use()))
            print(
                f"{passed:5.0f} s  {sum(counts.faults.values())} faults, {len(counts.reports)} reports",
                flush=True,
            )
        over.set()
        for thread in (*helpers, *agents):
            thread.join(60)
        wrong = judge(server.folder, counts)
        server.process.terminate()
        server.process.wait(30)
        answers = collections.Counter(report.answer or "undecided" for report in counts.reports)
        tries = sum(report.tries for report in counts.reports)
        print(f"\n{sum(counts.faults.values())} faults: {dict(counts.faults)}")
        print(
            f"{len(counts.sessions)} sessions, {len(counts.reports)} reports sent {tries} times: {dict(answers)}"
        )
        print(
            f"server: {server.starts} starts; resident MB and descriptors over the time of the last one or more:"
        )
        for passed, rss, files in uses[:: max(1, len(uses) // 8)]:
            print(f"  {passed:5.0f} s  {rss / 2**20:6.0f} MB  {files} descriptors")
        print(
            "\n".join(f"WRONG: {sentence}" for sentence in wrong)
            or "Nothing lost, nothing twice, every rule holds."
        )
        sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
