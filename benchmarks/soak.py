"""A soak: a real server and agents that speak its protocol, under seeded faults; then the database is asked.

Simulated agents play whole jobs; every race that one has run is written into a ledger before it is handed in, as its
spool does, and handed in until the server decides. Beside them real agents train a tiny script with gloo (`--real`).

Faults of the messages: answers lost after the server has acted; the same report twice, or changed; agents that sleep
beyond their lease and speak up again, or are killed and register anew. Of real agents: they and their ranks are killed
or stopped for a while (SIGKILL, SIGSTOP). Of the server: killed and started again, stopped, its clock of the day
stepped. Of SQLite: its write lock held by somebody else. Of PostgreSQL: stopped, crashed, suspended, its connections
cut, its tables locked.

In the end: no report is lost (the server's own answer is what the database holds), none is counted twice, no report
that a real agent's spool had is missing, none of their processes is left, every job ends when it is cancelled, the
rules of `advisor admin check` hold, and memory and descriptors have not grown: in the last third of the time no server
is killed, and what each uses early and late in it is compared. Exit code 1 where any of that fails.

    python benchmarks/soak.py --minutes 30 --database postgresql --agents 8 --real 2 --seed 1
"""

import argparse
import collections
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
from sqlalchemy import create_engine, text

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from faulty_agent import SIMULATED, Counts, FaultyAgent  # noqa: E402
from struck_agents import RealAgent, read_ledger, settle, strike_agents  # noqa: E402
from struck_server import PostgresCluster, Server, SqliteFile, strike_server  # noqa: E402

from advisor.app import make_id  # noqa: E402
from advisor.protocol.asked.jobs import Budget, JobSpec, Measurement  # noqa: E402
from advisor.protocol.training.workload import Workload  # noqa: E402
from advisor.storage import Database  # noqa: E402
from advisor.storage.repositories.blocks import MAX_QUARANTINED  # noqa: E402

_ALIVE = {"queued", "running", "cancelling"}
_SETTLING_S = 60.0
_MOST_GROWTH_BYTES = 24 * 2**20
"""From the first to the last third of the time in which one process serves: its caches fill in it."""
_MOST_DESCRIPTORS = 12
"""The same: threads of the pool open connections of their own to the database when they are first needed."""
Use = tuple[float, int, int]
"""Seconds since the beginning, resident bytes, open descriptors."""


def make_specs(real_agents: int, project: Path) -> list[JobSpec]:
    """What is tuned: a job of simulated agents, and one that really trains where there are agents for it."""
    simulated = JobSpec(
        workload=Workload(command=("torchrun", "train.py")),
        nodes=SIMULATED.nodes,
        testbed=SIMULATED,
        budget=Budget(max_trials=6, max_seconds=120),
    )
    nodes = min(2, max(1, real_agents))
    launch = ("torchrun", "--nproc-per-node", str(3 - nodes), "train.py")
    real = JobSpec(
        workload=Workload(command=launch, working_dir=str(project)),
        nodes=nodes,
        budget=Budget(max_trials=4, max_seconds=900),
        measurement=Measurement(warmup_steps=1, min_steps=5, max_steps=10, block_s=0.2),
        hang_timeout_s=6.0,
    )
    return [simulated, real] if real_agents else [simulated]


def make_client(server: Server) -> httpx.Client:
    """The administrator's way to the API."""
    token = (server.folder / "admin-token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=f"{server.url}/api/v1", timeout=10, headers=headers)


def keep_jobs(server: Server, wanted: Sequence[tuple[JobSpec, int]], over: threading.Event) -> None:
    """See that there are so many jobs of each kind that are not over."""
    bodies = [(spec.model_dump(mode="json"), spec.testbed is None, count) for spec, count in wanted]
    with make_client(server) as http:
        while not over.wait(0.5):
            with suppress(httpx.HTTPError, ValueError, KeyError):
                jobs = http.get("/jobs", params={"limit": 100}).json()["items"]
                alive = [job["spec"]["testbed"] is None for job in jobs if job["state"] in _ALIVE]
                for body, is_real, count in bodies:
                    if alive.count(is_real) < count:
                        key = {"Idempotency-Key": str(time.monotonic_ns())}
                        http.post("/jobs", json=body, headers=key).raise_for_status()


def end_jobs(server: Server) -> list[str]:
    """Cancel what is not over, with nothing failing any more; return what does not end, in sentences."""
    deadline, alive = time.monotonic() + _SETTLING_S, list[str]()
    with make_client(server) as http:
        while time.monotonic() < deadline:
            with suppress(httpx.HTTPError, ValueError, KeyError):
                jobs = http.get("/jobs", params={"limit": 100}).json()["items"]
                alive = [job["id"] for job in jobs if job["state"] in _ALIVE]
                if not alive:
                    return []
                for job in alive:
                    http.post(f"/jobs/{job}:cancel")
            time.sleep(0.5)
        states = [http.get(f"/jobs/{job}/history").json()["sessions"][-1:] for job in alive[:2]]
    return [f"{len(alive)} cancelled jobs do not end: {alive[:3]}; the latest sessions of two: {states}"]


def find_growth(uses: Sequence[Use]) -> list[str]:
    """Compare what one process used early and late; return what has grown, in sentences."""
    part = len(uses) // 3
    if part < 5:
        return []
    early, late = uses[:part], uses[-part:]
    bytes_more, descriptors_more = (
        statistics.median(use[i] for use in late) - statistics.median(use[i] for use in early) for i in (1, 2)
    )
    grown = []
    if bytes_more > _MOST_GROWTH_BYTES:
        grown.append(
            f"The server grew by {bytes_more / 2**20:.0f} MB in its last {late[-1][0] - uses[0][0]:.0f} s."
        )
    if descriptors_more > _MOST_DESCRIPTORS:
        grown.append(f"The server holds {descriptors_more:.0f} descriptors more than before.")
    return grown


def judge(url: str, counts: Counts, ledger: Sequence[set[str]] = ()) -> list[str]:
    """Ask the database; return what is wrong, in sentences. `ledger`: the blocks of each report of a real agent."""
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
    wrong += _list_missing(url, ledger)
    database = Database(url, make_id)
    with database.read() as work:
        wrong += work.upkeep.find_lost(**told) + work.upkeep.find_damage()
    database.close()
    return wrong


def _list_missing(url: str, ledger: Sequence[set[str]]) -> list[str]:
    """What real agents had in their spools and the server decided about, and is nowhere."""
    engine = create_engine(url)
    with engine.connect() as found:
        kept = {row[0] for row in found.execute(text("SELECT block_id FROM results"))}
        kept |= {row[0] for row in found.execute(text("SELECT DISTINCT block_id FROM quarantine"))}
        aside = found.execute(text("SELECT count(*) FROM quarantine GROUP BY agent_id")).scalars().all()
    engine.dispose()
    # A full quarantine makes room for the latest.
    is_full = any(count >= MAX_QUARANTINED for count in aside)
    gone = [blocks for blocks in ledger if not is_full and not blocks <= kept]
    if not gone:
        return []
    return [f"{len(gone)} reports of real agents' spools are nowhere: {[min(b) for b in gone[:3]]}"]


def print_counts(
    server: Server, agents: Sequence[RealAgent], counts: Counts, ledger: int, uses: Sequence[Use]
) -> None:
    """Print what happened; `uses`: what the server took in the last third of the time."""
    answers = collections.Counter(report.answer or "undecided" for report in counts.reports)
    tries = sum(report.tries for report in counts.reports)
    print(f"\n{counts.faults.total()} faults:")
    for fault, count in counts.faults.most_common():
        print(f"  {count:6} {fault}")
    print(
        f"{len(counts.sessions)} sessions, {len(counts.reports)} reports sent {tries} times: {dict(answers)}"
    )
    if agents:
        starts = sum(agent.starts for agent in agents)
        print(f"{len(agents)} real agents, {starts} starts, {ledger} reports of real trainings in the ledger")
    print(f"server: {server.starts} starts; resident MB and descriptors over the last third, without a kill:")
    for passed, rss, files in uses[:: max(1, len(uses) // 8)]:
        print(f"  {passed:5.0f} s  {rss / 2**20:6.0f} MB  {files} descriptors")


def soak(chosen: argparse.Namespace, folder: Path, real_folder: Path) -> list[str]:
    """Soak and print; return what is wrong."""
    counts, over, last_third = Counts(), threading.Event(), threading.Event()
    database = SqliteFile(folder) if chosen.database == "sqlite" else PostgresCluster()
    server = Server(folder, database)
    real = [RealAgent(f"real-{i}", server.url, real_folder, folder) for i in range(chosen.real)]
    agents = [
        FaultyAgent(server.url, folder, f"a{i}", f"{chosen.seed}-{i}", counts, over, chosen.rate)
        for i in range(chosen.agents)
    ]
    specs = make_specs(chosen.real, real_folder / "project")
    wanted = list(zip(specs, (max(1, chosen.agents // 2), 1), strict=False))
    common = counts, over, chosen.pause, last_third
    helpers = [
        threading.Thread(target=strike_server, args=(server, database.faults, f"s{chosen.seed}", *common)),
        threading.Thread(
            target=strike_agents, args=(real, f"r{chosen.seed}", counts, over, 3 * chosen.pause)
        ),
        threading.Thread(target=keep_jobs, args=(server, wanted, over)),
    ]
    for thread in (*agents, *helpers):
        thread.start()
    uses: list[Use] = []
    began, length_s = time.monotonic(), 60 * chosen.minutes
    while (passed := time.monotonic() - began) < length_s:
        time.sleep(min(5.0, max(0.1, length_s - passed)))
        if passed > 2 / 3 * length_s:
            last_third.set()
            with suppress(psutil.Error):
                uses.append((passed, *server.use()))
        print(f"{passed:5.0f} s  {counts.faults.total()} faults, {len(counts.reports)} reports", flush=True)
    over.set()
    for thread in (*helpers, *agents):
        thread.join(120)
    server.set_clock(0.0)
    counts.unexpected += end_jobs(server)
    settle(real, counts)
    ledger = read_ledger(real_folder) if real else []
    wrong = judge(database.url, counts, ledger) + find_growth(uses)
    if not counts.reports or (real and not ledger):
        wrong.append(
            "Nothing was measured, by simulated or by real agents: the soak proves nothing. Give it longer."
        )
    print_counts(server, real, counts, len(ledger), uses)
    server.process.terminate()
    server.process.wait(30)
    database.close()
    return wrong


def main() -> None:
    """Soak, judge, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--agents", type=int, default=8, help="simulated agents")
    parser.add_argument("--real", type=int, default=0, help="agents that really train")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.1, help="faults per message of an agent")
    parser.add_argument("--pause", type=float, default=6.0, help="mean seconds between faults of the server")
    parser.add_argument("--keep", type=Path, help="copy logs, database file and work directories there")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as real_folder:
        wrong = soak(chosen, Path(folder), Path(real_folder))
        if chosen.keep:
            shutil.copytree(folder, chosen.keep / "server")
            shutil.copytree(real_folder, chosen.keep / "agents")
    for sentence in wrong:
        print(f"WRONG: {sentence}")
    print("" if wrong else "Nothing lost, nothing twice, every rule holds, nothing grew.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
