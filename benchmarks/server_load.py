"""What the server bears: agents that wait, beats beside them, a long queue, and jobs with many measured blocks.

Starts a real server (`advisor serve`, SQLite) and speaks to it as agents do. CPU is the kernel's account (user and
system) of the server's process, as a share of one core. Times are percentiles of single requests, over one connection
each. Blocks beyond the first are written into the database directly, as accepted races of strategies from the space.

    python benchmarks/server_load.py --agents 10 60 --blocks 10 100 300 1000
"""

import argparse
import asyncio
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from advisor.app import make_id  # noqa: E402
from advisor.local.record import running_server  # noqa: E402
from advisor.protocol.asked.jobs import Budget, Job, JobSpec, Stage  # noqa: E402
from advisor.protocol.knobs.changes import Changes  # noqa: E402
from advisor.protocol.knobs.knob import Effect  # noqa: E402
from advisor.protocol.measured.trials import (  # noqa: E402
    Block,
    BlockPlan,
    BlockState,
    JobHistory,
    Purpose,
    Trial,
)
from advisor.protocol.nodes.cluster import Node  # noqa: E402
from advisor.protocol.training.workload import Workload  # noqa: E402
from advisor.protocol.views import EventKind  # noqa: E402
from advisor.storage import Database  # noqa: E402
from advisor.tuning.asked import PlannerTuning  # noqa: E402
from advisor.tuning.history.record import Record  # noqa: E402
from advisor.tuning.search.candidate_pool import list_candidates  # noqa: E402
from advisor.tuning.search.state import look  # noqa: E402
from tests.unit.services.fleet import measure_steps  # noqa: E402
from tests.unit.tuning.simulated_cluster import make_facts  # noqa: E402

PLACES, STRATEGIES, BEATS = 3, 150, 60
MONTH_S = 30 * 24 * 3600.0
TUNING = PlannerTuning()


class Server:
    """A server in a process of its own."""

    def __init__(self, data_dir: Path) -> None:
        known = {name: value for name, value in os.environ.items() if not name.startswith("ADVISOR_")}
        words = [sys.executable, "-m", "advisor", "serve", "--port", "0", "--data-dir", str(data_dir)]
        self.process = subprocess.Popen(
            words, env=known | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while (record := running_server(data_dir)) is None or not _is_ready(record.url):
            time.sleep(0.1)
        self.url = record.url
        self.database = Database(f"sqlite:///{data_dir / 'advisor.db'}", make_id)
        self.admin = (data_dir / "admin-token").read_text().strip()
        self.enrolment = (data_dir / "agent-token").read_text().strip()
        self._usage = psutil.Process(self.process.pid)

    def cpu_s(self) -> float:
        """Return the CPU time used so far, in seconds."""
        times = self._usage.cpu_times()
        return times.user + times.system

    def stop(self) -> None:
        """Stop it."""
        self.database.close()
        self.process.terminate()
        self.process.wait(30)


class Agent:
    """An agent that speaks the protocol and starts nothing."""

    def __init__(self, server: Server, name: str, cpu_count: int = 2) -> None:
        self.http = httpx.AsyncClient(base_url=f"{server.url}/api/v1", timeout=120)
        self.server, self.name, self.cpu_count = server, name, cpu_count
        self.place: dict[str, Any] | None = None

    async def ask(self, path: str, body: object, token: str | None = None) -> dict[str, Any]:
        """Send a request; return the answer's body."""
        headers = {"Authorization": f"Bearer {token or self.token}"}
        reply = await self.http.post(path, json=body, headers=headers)
        reply.raise_for_status()
        return reply.json() if reply.content else {}

    async def register(self) -> "Agent":
        """Introduce itself."""
        node = Node(hostname=self.name, cpu_count=self.cpu_count, memory_bytes=2**34).model_dump(mode="json")
        known = await self.ask(
            "/agents", {"name": self.name, "node": node, "secret": self.name}, self.server.enrolment
        )
        self.id, self.token = known["agent_id"], known["token"]
        return self

    async def poll(self) -> None:
        """Ask for work once."""
        self.place = (await self.ask(f"/agents/{self.id}/poll", {}))["assignment"]

    async def say(self, what: str, **body: object) -> dict[str, Any]:
        """Say something about the session it holds."""
        assert self.place is not None
        path = f"/sessions/{self.place['session_id']}/{what}"
        return await self.ask(path, {"generation": self.place["generation"], **body})

    async def begin(self) -> None:
        """Take up a place until the session runs."""
        while self.place is None:
            await self.poll()
        while (await self.say("beat", state="ready", rendezvous="127.0.0.1:1"))["state"] != "running":
            pass

    async def report(self, race: dict[str, Any], number: int) -> None:
        """Report a race."""
        results = {arm["block_id"]: asdict(measure(arm["overrides"], number)) for arm in race["arms"]}
        await self.say(f"races/{race['arms'][0]['block_id']}", results=results)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.HTTPError:
        return False


def measure(changes: Any, number: int) -> Any:
    """Return made-up turns: each strategy has a speed of its own, and everything wobbles a little."""
    speed = 1 + 0.02 * math.sin(sum(len(str(value)) * 7 + ord(str(value)[0]) for value in changes.values()))
    return measure_steps(changes, lambda _: speed, 0.001 * ((number * 5) % 7 - 3) / 3)


async def submit(server: Server, **fields: Any) -> Job:
    """Submit a job that never spends its budget."""
    spec = JobSpec(
        workload=Workload(command=("torchrun", "train.py")),
        budget=Budget(max_seconds=MONTH_S, max_trials=500),
        session_timeout_s=MONTH_S,
        **fields,
    )
    async with httpx.AsyncClient(base_url=f"{server.url}/api/v1", timeout=60) as http:
        headers = {"Authorization": f"Bearer {server.admin}"}
        return Job.model_validate(
            (await http.post("/jobs", json=spec.model_dump(mode="json"), headers=headers)).json()
        )


async def timed(ask: Callable[[], Awaitable[object]], times: int = 1, pause_s: float = 0.0) -> list[float]:
    """Return what each of several requests took, in milliseconds."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        await ask()
        found.append(1000 * (time.perf_counter() - began))
        await asyncio.sleep(pause_s)
    return found


def say_times(found: list[float]) -> str:
    """Return the middle and the 99th percentile of times in milliseconds."""
    ranked = sorted(found)
    return f"p50 {statistics.median(ranked):6.1f} ms, p99 {ranked[math.ceil(0.99 * len(ranked)) - 1]:6.1f} ms"


async def watch_waiting(server: Server, busy: Agent, agents: list[Agent], seconds: float, what: str) -> None:
    """Let agents wait for work, and print what that costs and what beats take beside them."""

    async def wait(agent: Agent) -> None:
        while True:
            await agent.poll()

    tasks = [asyncio.create_task(wait(agent)) for agent in agents]
    await asyncio.sleep(2)
    began, used = time.perf_counter(), server.cpu_s()
    beats = await timed(lambda: busy.say("beat", state="running"), BEATS, seconds / BEATS)
    share = (server.cpu_s() - used) / (time.perf_counter() - began)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(f"{what:45} {share:6.1%} of one core; beats {say_times(beats)}", flush=True)


def fill(server: Server, job_id: str, session_id: str, blocks: int) -> list[Any]:
    """Write accepted races until a job has `blocks` blocks less one race; return the arms of one that is under way."""
    with server.database.read() as work:
        job = work.jobs.get(job_id)
        assert job is not None
        history = JobHistory(
            trials=work.trials.of_job(job_id),
            blocks=work.blocks.of_job(job_id),
            sessions=work.sessions.of_job(job_id),
        )
    now = datetime.now(UTC)
    state = look(Record(job, history, now))
    assert state is not None
    strategies = list_candidates(state.space, set(), [], 1)[:STRATEGIES]
    session = next(session for session in history.sessions if session.id == session_id)
    races = max(1, (blocks - len(history.blocks)) // (PLACES + 1))
    chosen = cycle(range(len(strategies)))
    numbers: dict[int, int] = {}
    ordinal = len(history.blocks)
    plans: list[Any] = []
    for race in range(races):
        with server.database.begin() as work:
            arms: list[tuple[int, Any]] = [(0, Changes())]
            for place in islice(chosen, PLACES):
                if place not in numbers:
                    numbers[place] = len(work.trials.of_job(job_id))
                    trial = Trial(number=numbers[place], purpose=Purpose.SEARCH, changes=strategies[place],
                                  effect=Effect.EXACT, because="A strategy of the space.", created_at=now)  # fmt: skip
                    work.trials.add(job_id, trial)
                arms.append((numbers[place], strategies[place]))
            made = []
            for place, (number, changes) in enumerate(arms):
                plan = BlockPlan(block_id=make_id(), trial_number=number, overrides=changes)
                made.append(
                    Block(id=plan.block_id, session_id=session_id, trial_number=number, ordinal=ordinal,
                          race=race + 2, arm=place, state=BlockState.ISSUED, plan=plan, issued_at=now)
                )  # fmt: skip
                work.blocks.issue(job_id, made[-1])
                ordinal += 1
            plans = [block.plan.model_dump(mode="json") for block in made]
            if race < races - 1:
                reference = measure({}, race)
                for block in made:
                    result = measure(block.plan.overrides, race)
                    summary = TUNING.summarise(result, reference if block.arm else None)
                    work.blocks.accept(block, session.generation, result, summary, "sha", now)
            work.jobs.set_stage(job_id, Stage.SEARCH)
            work.events.append(job_id, EventKind.JOB, "A race was written.", now)
    return plans


async def watch_blocks(server: Server, blocks: int, times: int) -> None:
    """Print what a report, the next race and the whole history take in a job of that many blocks."""
    agent = await Agent(server, f"measures-{blocks}", cpu_count=3 + blocks).register()
    job = await submit(server, name=f"blocks-{blocks}")
    await agent.begin()
    facts = make_facts(world_size=2, nodes=1, local_world_size=2).model_dump(mode="json")
    await agent.say("hello", facts=facts, baseline={"fuse_grad_size_in_MB": 25.0})
    await agent.report((await agent.say("next"))["race"], 0)
    race: dict[str, Any] | None = {"arms": fill(server, job.id, agent.place["session_id"], blocks)}  # type: ignore[index]
    headers = {"Authorization": f"Bearer {server.admin}"}
    reports, nexts, looks = [], [], []
    for number in range(times):
        if race is None:
            break
        under_way = race
        reports += await timed(lambda: agent.report(under_way, number))  # noqa: B023
        # Ranks take a moment between two races: they tell each other what was measured.
        await asyncio.sleep(0.05)
        began = time.perf_counter()
        race = (await agent.say("next"))["race"]
        nexts.append(1000 * (time.perf_counter() - began))
        looks += await timed(lambda: agent.http.get(f"/jobs/{job.id}/history", headers=headers))
    print(f"{blocks:5} blocks: report {statistics.median(reports):7.1f} ms, next {statistics.median(nexts):7.1f} ms, "
          f"history over HTTP {statistics.median(looks):7.1f} ms ({len(nexts)} each)", flush=True)  # fmt: skip


async def run(arguments: argparse.Namespace) -> None:
    """Carry out everything, each part on a server of its own."""
    print(f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
          f"load {os.getloadavg()[0]:.1f} at the start", flush=True)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        busy = await Agent(server, "busy").register()
        await submit(server)
        await busy.begin()
        await watch_waiting(server, busy, [], arguments.seconds, "one session, nobody waits")
        idle: list[Agent] = []
        for count in arguments.agents:
            while len(idle) < count:
                idle.append(await Agent(server, f"idle-{len(idle)}").register())
            await watch_waiting(server, busy, idle, arguments.seconds, f"{count} agents wait")
        now = datetime.now(UTC)
        with server.database.begin() as work:
            for number in range(arguments.known):
                node = Node(hostname=f"n{number}", cpu_count=2, memory_bytes=2**34)
                work.agents.add(make_id(), f"known-{number}", node, now)
        for _ in range(arguments.queued):
            await submit(server, nodes=1024)
        what = f"the same, {arguments.known} known, {arguments.queued} jobs queued"
        await watch_waiting(server, busy, idle, arguments.seconds, what)
        server.stop()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        for blocks in arguments.blocks:
            await watch_blocks(server, blocks, arguments.times)
        server.stop()


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, nargs="*", default=[10, 60], help="agents that wait for work")
    parser.add_argument(
        "--known", type=int, default=900, help="agents in the database that were heard of once"
    )
    parser.add_argument(
        "--queued", type=int, default=100, help="jobs that ask for more agents than there are"
    )
    parser.add_argument("--blocks", type=int, nargs="*", default=[10, 100, 300, 1000], help="blocks of a job")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="length of each stretch with agents that wait"
    )
    parser.add_argument(
        "--times", type=int, default=3, help="reports and races measured for each count of blocks"
    )
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
