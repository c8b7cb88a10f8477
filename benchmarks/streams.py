"""What it costs a server that people watch: streams of one job's events that replay, wait, and tell what happens.

Starts a real server (`advisor serve`, SQLite), gives it a job with a long story, and opens streams of it. CPU is the
kernel's account of the server's process. Beside the streams one connection asks for the job, again and again.

    python benchmarks/streams.py --streams 64 --idle 200 --events 2000
"""

import argparse
import asyncio
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from server_load import Server, say_times, submit, timed  # noqa: E402

from advisor.protocol.views import EventKind  # noqa: E402

LIVE_EVENTS, LIVE_S = 200, 10.0


def tell(server: Server, job_id: str, count: int) -> None:
    """Let `count` things happen to a job, in one transaction."""
    with server.database.begin() as work:
        for number in range(count):
            work.events.append(
                job_id, EventKind.TRIAL, f"Trial {number} of the benchmark was measured.", datetime.now(UTC)
            )


class Watcher:
    """One stream; counts what it is told."""

    def __init__(self) -> None:
        self.events = 0

    async def watch(self, http: httpx.AsyncClient, url: str, token: str, after: int) -> None:
        """Read until cancelled."""
        headers = {"Authorization": f"Bearer {token}", "Last-Event-ID": str(after)}
        async with http.stream("GET", url, headers=headers) as reply:
            reply.raise_for_status()
            async for line in reply.aiter_lines():
                self.events += line.startswith("id: ")


async def watch(
    server: Server, job_id: str, count: int, after: int, lively: bool, seconds: float, what: str
) -> None:
    """Open streams after the event `after`; print their cost until all have been told everything, or for a while."""
    url = f"{server.url}/api/v1/jobs/{job_id}/events/stream"
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=None, limits=limits) as http:
        per_token = 60
        tokens = [await make_token(server, http) for _ in range(-(-count // per_token))]
        watchers = [Watcher() for _ in range(count)]
        asking = {"Authorization": f"Bearer {server.admin}"}
        began, used = time.perf_counter(), server.cpu_s()
        tasks = [
            asyncio.create_task(watcher.watch(http, url, tokens[number // per_token], after))
            for number, watcher in enumerate(watchers)
        ]
        due = await newest(server, http, job_id) - after
        times: list[float] = []
        if not lively and not due:
            await asyncio.sleep(2.0)
            began, used = time.perf_counter(), server.cpu_s()
        told = 0
        while time.perf_counter() - began < seconds or any(watcher.events < due for watcher in watchers):
            times += await timed(
                lambda: http.get(f"{server.url}/api/v1/jobs/{job_id}", headers=asking), 1, 0.05
            )
            if lively and told < LIVE_EVENTS and told < LIVE_EVENTS * (time.perf_counter() - began) / LIVE_S:
                await asyncio.to_thread(tell, server, job_id, 5)
                told += 5
                due += 5
            if time.perf_counter() - began > 40:
                break
        spent, took = server.cpu_s() - used, time.perf_counter() - began
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    late = sum(watcher.events < due for watcher in watchers)
    print(
        f"{what:52} {spent:6.2f} s of CPU in {took:5.1f} s ({spent / took:5.1%} of a core)"
        f"; beside it {say_times(times)}{f'; {late} not told everything' if late else ''}",
        flush=True,
    )


async def make_token(server: Server, http: httpx.AsyncClient) -> str:
    """Return a new viewer's token."""
    headers = {"Authorization": f"Bearer {server.admin}"}
    reply = await http.post(f"{server.url}/api/v1/tokens", json={"role": "viewer"}, headers=headers)
    reply.raise_for_status()
    return str(reply.json()["secret"] if "secret" in reply.json() else reply.json()["token"])


async def newest(server: Server, http: httpx.AsyncClient, job_id: str) -> int:
    """Return the number of a job's last event."""
    headers = {"Authorization": f"Bearer {server.admin}"}
    after = 0
    while True:
        page = await http.get(
            f"{server.url}/api/v1/jobs/{job_id}/events?limit=500&after={after}", headers=headers
        )
        if page.json()["next_after"] == after:
            return after
        after = page.json()["next_after"]


async def run(streams: int, idle: int, events: int, seconds: float) -> None:
    """Measure all of it on one server."""
    with tempfile.TemporaryDirectory(prefix="streams-") as folder:
        server = Server(Path(folder))
        try:
            job = await submit(server)
            tell(server, job.id, events)
            async with httpx.AsyncClient() as http:
                last = await newest(server, http, job.id)
            await watch(server, job.id, 0, last, False, seconds, "nobody watches")
            await watch(server, job.id, streams, 0, False, 0.0, f"{streams} streams replay {events} events")
            await watch(server, job.id, idle, last, False, seconds, f"{idle} streams wait")
            await watch(
                server,
                job.id,
                streams,
                last,
                True,
                LIVE_S + 3,
                f"{streams} streams are told {LIVE_EVENTS} new events",
            )
        finally:
            server.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--idle", type=int, default=200)
    parser.add_argument("--events", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    asyncio.run(run(given.streams, given.idle, given.events, given.seconds))
