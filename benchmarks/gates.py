"""The gates of the service: what one server process has to bear on two cores, the generator of the load included.

Each gate starts `advisor serve` on a SQLite file that holds a fleet at work, with authentication and validation as
always, and sends it an open-loop load over kept connections. It prints what was asked for and what was measured; the
exit code is 1 where a gate is missed. CPU is the kernel's account of the server's process.

    python benchmarks/gates.py agents --agents 1000
    python benchmarks/gates.py agents --agents 10000 --seconds 3600
    python benchmarks/gates.py idle
    python benchmarks/gates.py reports --seconds 60
    python benchmarks/gates.py next
    python benchmarks/gates.py restart
    python benchmarks/gates.py reconnect --agents 10000
    python benchmarks/gates.py all
"""

import argparse
import asyncio
import json
import math
import os
import platform
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import uvloop

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from open_loop import Line, Load, offer, write_request  # noqa: E402
from seeded_fleet import IdleAgent, Seat, deepen, measure, seed  # noqa: E402

from advisor.local.record import running_server  # noqa: E402
from advisor.services.timers import Timers  # noqa: E402

LEAST_INTERVAL_S = 10.0
POINTS = 20
SETTINGS: dict[str, str] = {}
"""What every server is told."""
_CONNECTIONS = 100
_SETTLE_S = 2.0
_LOADING_S = 8.0
"""As long as the planner's process takes to load what it thinks with, and to think once."""
_TRIALS_A_JOB = 70
"""What `deepen` makes of 220 blocks."""


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    gate: str
    target: str
    measured: str
    met: bool


class Server:
    """`advisor serve` on a data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._start()

    def _start(self) -> None:
        data_dir = self.data_dir
        known = {name: value for name, value in os.environ.items() if not name.startswith("ADVISOR_")}
        words = [sys.executable, "-m", "advisor", "serve", "--port", "0", "--data-dir", str(data_dir)]
        began_s = time.perf_counter()
        self.process = subprocess.Popen(
            words,
            env=known | {"PYTHONPATH": str(ROOT)} | SETTINGS,
            stdout=subprocess.DEVNULL,
            stderr=(data_dir / "server.log").open("ab"),
        )
        while (record := running_server(data_dir)) is None or not _is_ready(record.url):
            if self.process.poll() is not None:
                raise SystemExit(f"The server ended: see {data_dir / 'server.log'}")
            time.sleep(0.02)
        self.start_s = time.perf_counter() - began_s
        self.url = record.url

    @property
    def enrolment(self) -> str:
        """The token that agents register with."""
        return (self.data_dir / "agent-token").read_text().strip()

    def cpu_s(self) -> float:
        """Return the CPU time used so far, in seconds; that of the processes that plan too."""
        return sum(times.user + times.system for times in (one.cpu_times() for one in self._processes()))

    def rss_mb(self) -> float:
        """Return the resident memory, in megabytes; that of the processes that plan too."""
        return sum(one.memory_info().rss for one in self._processes()) / 1e6

    def _processes(self) -> list[psutil.Process]:
        server = psutil.Process(self.process.pid)
        return [server, *server.children()]

    def crash(self) -> None:
        """Kill it, and start another one on its data."""
        self.process.kill()
        self.process.wait()
        self._start()

    def stop(self) -> None:
        """Stop it."""
        self.process.terminate()
        self.process.wait(60)


@contextmanager
def serve(prepare: Callable[[Path], Any]) -> Iterator[tuple[Server, Any]]:
    """Run a server on a new data directory that `prepare` has filled."""
    with tempfile.TemporaryDirectory(prefix="gates") as folder:
        prepared = prepare(Path(folder))
        server = Server(Path(folder))
        time.sleep(_SETTLE_S)
        try:
            yield server, prepared
        finally:
            server.stop()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.HTTPError:
        return False


def _count(data_dir: Path, query: str) -> int:
    with sqlite3.connect(f"file:{data_dir / 'advisor.db'}?mode=ro", uri=True) as connection:
        return int(connection.execute(query).fetchone()[0])


async def _load_with_usage(server: Server, due: list[tuple[float, Line, bytes]], load: Load) -> str:
    used_s, began_s = server.cpu_s(), time.perf_counter()
    await offer(due, load)
    cpu_s, wall_s = server.cpu_s() - used_s, time.perf_counter() - began_s
    each_ms = 1000 * cpu_s / max(1, len(due))
    return f"{load.describe()}; server {cpu_s / wall_s:.0%} of a core, {each_ms:.2f} ms CPU each"


async def hold_agents(arguments: argparse.Namespace) -> list[Finding]:
    """Agents in sessions of eight that beat at the interval that the gate names, each with what it sampled."""
    count, gang = arguments.agents, 8
    interval_s = max(LEAST_INTERVAL_S, Timers().pace(count).beat_s)
    target_ms, most_mb = (50, None) if count <= 1000 else (150, 400)
    with serve(lambda folder: seed(folder, count // gang, gang)) as (server, seats):
        lines = [Line(server.url) for _ in seats]
        chance = random.Random(1)
        sample = {"age_s": 0.5, "cpu": 0.5, "session_cpu": 0.4, "memory_bytes": 2**33}
        due = []
        for seat, line in zip(seats, lines, strict=True):
            at_s = chance.uniform(0, interval_s)
            while at_s < arguments.seconds:
                beat = {
                    "generation": 1,
                    "state": "running",
                    "news": len(due) + 1,
                    "telemetry": {"samples": [sample]},
                }
                due.append((at_s, line, write_request(f"/sessions/{seat.session_id}/beat", seat.token, beat)))
                at_s += interval_s * chance.uniform(0.8, 1.2)
        load = Load()
        said = await _load_with_usage(server, sorted(due, key=lambda one: one[0]), load)
        rss_mb = server.rss_mb()
        for line in lines:
            line.close()
        lost = _count(server.data_dir, "SELECT count(*) FROM sessions WHERE state != 'running'")
    p99_ms = load.percentile_ms(0.99)
    met = p99_ms < target_ms and not lost and not load.failed and (most_mb is None or rss_mb < most_mb)
    target = f"beat p99 < {target_ms} ms, no false expiry" + (f", RSS < {most_mb} MB" if most_mb else "")
    measured = f"{said}, RSS {rss_mb:.0f} MB, {lost} sessions lost"
    return [Finding(f"{count} agents, a beat every {interval_s:g} s", target, measured, met)]


async def hold_idle(arguments: argparse.Namespace) -> list[Finding]:
    """Sixty agents that wait for work, and nothing else."""
    with serve(lambda folder: seed(folder, 0)) as (server, _):
        agents = [IdleAgent(server.url, server.enrolment, f"idle-{number}") for number in range(60)]
        tasks = [asyncio.create_task(agent.wait()) for agent in agents]
        await asyncio.sleep(_SETTLE_S)
        used_s, began_s = server.cpu_s(), time.perf_counter()
        await asyncio.sleep(arguments.seconds)
        share = (server.cpu_s() - used_s) / (time.perf_counter() - began_s)
        assert not any(task.done() for task in tasks), "an agent no longer waits"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [Finding("60 idle agents", "< 1 % of a core", f"{share:.2%} of a core", share < 0.01)]


def _write_report(seat: Seat, number: int) -> bytes:
    result = measure({}, number)
    times = result.step_time_s[:POINTS]
    body = replace(result, step_time_s=times, steps=POINTS, segments=(4,) * (POINTS // 4), wall_s=sum(times))
    message = {"generation": 1, "results": {seat.arms[0]: asdict(body)}}
    return write_request(f"/sessions/{seat.session_id}/races/{seat.arms[0]}", seat.token, message)


async def take_reports(arguments: argparse.Namespace) -> list[Finding]:
    """Race reports of twenty timed steps each, every one of a session of its own."""
    count = int(arguments.rate * arguments.seconds)
    with serve(lambda folder: seed(folder, count + 1, with_race=True)) as (server, seats):
        lines = [Line(server.url) for _ in range(_CONNECTIONS)]
        due = [
            ((number - 1) / arguments.rate, lines[number % _CONNECTIONS], _write_report(seat, number))
            for number, seat in enumerate(seats)
        ]
        # As a real one, each agent has beaten before it reports.
        beats = [write_request(f"/sessions/{seat.session_id}/beat", seat.token, {"generation": 1, "state": "running"})
                 for seat in seats]  # fmt: skip
        await offer([(at_s, line, beat) for (at_s, line, _), beat in zip(due, beats, strict=True)], Load())
        # The planner's libraries are loaded for the first report that a server ever takes.
        await offer([due.pop(0)], Load())
        await asyncio.sleep(_LOADING_S)
        load = Load()
        said = await _load_with_usage(server, due, load)
        kept = _count(server.data_dir, "SELECT count(*) FROM results")
    p99_ms = load.percentile_ms(0.99)
    measured = f"{said}, {kept - 1} results kept"
    met = p99_ms < 150 and kept == count + 1 and not load.failed
    return [
        Finding(f"{arguments.rate:g} reports/s x {POINTS} points, durable", "p99 < 150 ms", measured, met)
    ]


async def ask_next(arguments: argparse.Namespace) -> list[Finding]:
    """Sessions that have measured the baseline ask for their next race, each once, and the planner thinks beside it."""
    rate = min(arguments.rate, 50.0)
    count = int(rate * arguments.seconds)
    with serve(lambda folder: seed(folder, count + 1, probed=True)) as (server, seats):
        lines = [Line(server.url) for _ in range(_CONNECTIONS)]
        ask = [write_request(f"/sessions/{s.session_id}/next", s.token, {"generation": 1}) for s in seats]
        # The planner's libraries are loaded for the first question that a server is ever asked.
        await offer([(0.0, lines[0], ask.pop())], Load())
        due = [(n / rate, lines[n % _CONNECTIONS], request) for n, request in enumerate(ask)]
        first = Load()
        said = await _load_with_usage(server, due, first)
        again = Load()
        said_again = await _load_with_usage(server, due, again)
    return [
        Finding(f"next block, {rate:g}/s, {what}", "p50 < 15 ms, p99 < 100 ms", words,
                load.percentile_ms(0.5) < 15 and load.percentile_ms(0.99) < 100 and not load.failed)
        for what, words, load in (("to be planned", said, first), ("asked again", said_again, again))
    ]  # fmt: skip


def _suggest(folder: Path, seat: Seat, *, crash: bool) -> tuple[list[Any], float]:
    server = Server(folder)
    if crash:
        server.crash()
    headers = {"Authorization": f"Bearer {seat.token}"}
    url = f"{server.url}/api/v1/sessions/{seat.session_id}/next"
    answer = httpx.post(url, json={"generation": 1}, headers=headers, timeout=60).raise_for_status().json()
    server.stop()
    return [arm["overrides"] for arm in answer["race"]["arms"]], server.start_s


async def start_again(arguments: argparse.Namespace) -> list[Finding]:
    """A database of that many trials in running jobs: how long a start takes, and what is suggested after it."""
    jobs = math.ceil(arguments.trials / _TRIALS_A_JOB)
    with tempfile.TemporaryDirectory(prefix="gates") as folder:
        here, there = Path(folder) / "a", Path(folder) / "b"
        seats = seed(here, jobs, probed=True)
        deepen(here, seats, 220)
        trials = _count(here, "SELECT count(*) FROM trials")
        shutil.copytree(here, there)
        before, _ = _suggest(here, seats[0], crash=False)
        after, start_s = _suggest(there, seats[0], crash=True)
    same = "the same" if before == after else f"another ({json.dumps(before)}, {json.dumps(after)})"
    measured = f"ready in {start_s:.2f} s, {same} next suggestion after kill -9"
    target = "ready < 3 s, same next suggestion"
    return [Finding(f"restart with {trials} trials", target, measured, start_s < 3 and before == after)]


async def come_back(arguments: argparse.Namespace) -> list[Finding]:
    """A server is killed and started again, and all agents come back within a second, each with a new connection.

    One that gets no answer, or is told to come later, waits up to two seconds and asks again, as agents do.
    """
    gang = 8
    with serve(lambda folder: seed(folder, arguments.agents // gang, gang)) as (server, seats):
        server.crash()
        chance, lines = random.Random(1), [Line(server.url) for _ in seats]
        beats = [
            write_request(
                f"/sessions/{seat.session_id}/beat", seat.token, {"generation": 1, "state": "running"}
            )
            for seat in seats
        ]
        began_s, rounds, refused = time.perf_counter(), 0, 0
        waiting, spread_s = list(range(len(seats))), 1.0
        while waiting and rounds < 20:
            loads = [Load() for _ in waiting]
            due = sorted((chance.uniform(0, spread_s), number) for number in range(len(waiting)))
            await asyncio.gather(
                *(offer_later(at_s, lines[waiting[n]], beats[waiting[n]], loads[n]) for at_s, n in due)
            )
            waiting = [who for who, load in zip(waiting, loads, strict=True) if load.failed]
            refused, rounds, spread_s = refused + len(waiting), rounds + 1, 2.0
        took_s = time.perf_counter() - began_s
        for line in lines:
            line.close()
        await asyncio.sleep(_SETTLE_S)
        lost = _count(server.data_dir, "SELECT count(*) FROM sessions WHERE state != 'running'")
        rss_mb = server.rss_mb()
    measured = (
        f"all answered after {took_s:.1f} s, {refused} asked again, {lost} sessions lost, RSS {rss_mb:.0f} MB"
        if not waiting
        else f"{len(waiting)} never answered"
    )
    target = "all answered within a lease (36 s), none lost"
    return [
        Finding(f"{arguments.agents} agents come back in a second", target, measured,
                not waiting and not lost and took_s < 36)
    ]  # fmt: skip


async def offer_later(at_s: float, line: Line, request: bytes, load: Load) -> None:
    """Send one request in so many seconds, and wait for what comes of it."""
    await asyncio.sleep(at_s)
    await offer([(0.0, line, request)], load)


GATES = {
    "agents": hold_agents, "idle": hold_idle, "reports": take_reports, "next": ask_next, "restart": start_again,
    "reconnect": come_back,
}  # fmt: skip


async def run(arguments: argparse.Namespace) -> bool:
    """Run the gates and print the table; return whether all were met."""
    print(f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
          f"load {os.getloadavg()[0]:.1f} at the start", flush=True)  # fmt: skip
    found: list[Finding] = []
    for name in GATES if arguments.gate == "all" else [arguments.gate]:
        fleets = [1000, 10000] if arguments.gate == "all" and name == "agents" else [arguments.agents]
        for agents in fleets:
            found += await GATES[name](argparse.Namespace(**vars(arguments) | {"agents": agents}))
            print(f"{found[-1].gate}: {found[-1].measured}", flush=True)
    print("\n| gate | target | measured | |\n|---|---|---|---|")
    for one in found:
        print(f"| {one.gate} | {one.target} | {one.measured} | {'met' if one.met else 'missed'} |")
    return all(one.met for one in found)


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("gate", choices=[*GATES, "all"])
    parser.add_argument("--agents", type=int, default=1000, help="agents in sessions")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a load")
    parser.add_argument("--rate", type=float, default=200.0, help="reports a second; of next at most 50")
    parser.add_argument(
        "--trials", type=int, default=10_000, help="trials in the database that is started on"
    )
    parser.add_argument(
        "--planners", type=int, default=1, help="processes that plan; 0: the server does it itself"
    )
    arguments = parser.parse_args()
    SETTINGS["ADVISOR_PLANNER_PROCESSES"] = str(arguments.planners)
    sys.exit(not uvloop.run(run(arguments)))


if __name__ == "__main__":
    main()
