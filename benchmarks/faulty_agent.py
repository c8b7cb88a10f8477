"""An agent that speaks the server's protocol, measures made-up races, and is struck by faults; for `soak.py`."""

import collections
import hashlib
import json
import random
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))

from advisor.protocol.nodes.cluster import Node
from advisor.protocol.nodes.testbed import Testbed
from tests.unit.services.fleet import measure_steps
from tests.unit.tuning.simulated_cluster import make_facts

DECIDED = {"result_quarantined": "quarantined", "result_differs": "quarantined", "invalid_result": "refused"}
"""Codes of problem documents after which a report is out of the agent's hands."""

LEASE_S, GRACE_S = 8.0, 2.0
"""Of a soak's server: short, but no shorter than it takes to start again."""
SIMULATED = Testbed(nodes=2, rate="1gbit", name="soak")
"""What simulated agents say they are nodes of, so that real ones train with real ones only."""


@dataclass
class Report:
    """One race as an agent ran it: what its spool would hold."""

    path: str
    body: dict[str, Any]
    answer: str = ""
    """accepted, quarantined or refused; empty while the server has not decided."""
    tries: int = 0


@dataclass
class Counts:
    """What happened; shared by all threads."""

    faults: collections.Counter[str] = field(default_factory=collections.Counter)
    reports: list[Report] = field(default_factory=list)
    sessions: set[str] = field(default_factory=set)
    unexpected: list[str] = field(default_factory=list)


class FaultyAgent(threading.Thread):
    """Registers, takes places, measures made-up races, and is struck by faults."""

    def __init__(
        self,
        url: str,
        folder: Path,
        name: str,
        seed: str,
        counts: Counts,
        over: threading.Event,
        rate: float,
    ) -> None:
        """`folder` is the server's data directory, `rate` the faults per message, until it is `over`."""
        super().__init__(name=name, daemon=True)
        self.folder, self.counts, self.over, self.rate = folder, counts, over, rate
        self.random = random.Random(seed)
        self.secret = hashlib.sha256(seed.encode()).hexdigest()
        self.http = httpx.Client(base_url=f"{url}/api/v1", timeout=10)
        self.token = self.id = ""
        self.waiting: list[Report] = []
        self.numbers = 0

    def run(self) -> None:
        """Work until the soak is over, then hand in what waits."""
        while not self.over.is_set():
            try:
                self.work()
            except httpx.HTTPError:
                self.over.wait(0.1)
            except Exception as error:
                self.counts.unexpected.append(f"{self.name}: {error!r}")
                self.over.wait(0.5)
        for _ in range(300):
            with suppress(httpx.HTTPError):
                self.hand_in()
            if not self.waiting:
                return
            time.sleep(0.1)

    def ask(self, path: str, body: Any, token: str = "") -> httpx.Response:
        """Send a message; its answer is lost now and then, after the server has acted."""
        headers = {"Authorization": f"Bearer {token or self.token}"}
        reply = self.http.post(path, json=body, headers=headers)
        if reply.status_code >= 500 and reply.status_code != 503:
            self.counts.unexpected.append(f"{path}: {reply.status_code} {reply.text[:200]}")
        if self.strikes("answer lost"):
            raise httpx.ReadError("the answer is lost")
        return reply

    def strikes(self, fault: str, times: float = 1.0) -> bool:
        """Whether this fault happens now."""
        hit = not self.over.is_set() and self.random.random() < self.rate * times
        self.counts.faults[fault] += hit
        return hit

    def work(self) -> None:
        """One place, from its beginning to its end."""
        if not self.token or self.strikes("agent killed and started again", 0.5):
            node = Node(hostname=self.name, cpu_count=2, memory_bytes=2**34, testbed=SIMULATED).model_dump(
                mode="json"
            )
            enrolment = (self.folder / "agent-token").read_text().strip()
            known = self.ask("/agents", {"name": self.name, "node": node, "secret": self.secret}, enrolment)
            if not known.is_success:
                self.over.wait(0.2)
                return
            self.id, self.token = known.json()["agent_id"], known.json()["token"]
        self.hand_in()
        polled = self.ask(f"/agents/{self.id}/poll", {})
        if polled.status_code == 401:
            self.token = ""
        place = polled.json().get("assignment") if polled.is_success else None
        if place is not None:
            self.counts.sessions.add(place["session_id"])
            self.hold(place)

    def hold(self, place: dict[str, Any]) -> None:
        """Take part in a session until it is over, for this agent or for all."""
        path, generation = f"/sessions/{place['session_id']}", {"generation": place["generation"]}
        state, greeted = "assembling", False
        while not self.over.is_set():
            if self.strikes("agent slept beyond its lease", 0.3):
                self.over.wait(1.5 * (LEASE_S + GRACE_S))
            if self.strikes("agent killed in a session", 0.3):
                return
            try:
                beat = self.ask(f"{path}/beat", generation | {"state": "ready", "rendezvous": "127.0.0.1:1"})
                if beat.status_code in {401, 404, 409, 410}:
                    return
                state = beat.json()["state"] if beat.is_success else state
                if state == "ending":
                    self.ask(f"{path}/end", generation | {"outcome": "finished", "reason": "Asked to end."})
                    return
                if state != "running" or place["node_rank"]:
                    self.over.wait(0.05)
                    continue
                if not greeted:
                    facts = make_facts(world_size=2, nodes=1, local_world_size=2).model_dump(mode="json")
                    hello = {"facts": facts, "baseline": {"fuse_grad_size_in_MB": 25.0}}
                    greeted = self.ask(f"{path}/hello", generation | hello).is_success
                    continue
                race = self.ask(f"{path}/next", generation)
                if race.is_success and race.json()["race"] is not None:
                    self.measure(path, place["generation"], race.json()["race"])
                    self.hand_in()
                elif race.is_success:
                    self.ask(f"{path}/end", generation | {"outcome": "finished", "reason": "Asked to end."})
                    return
            except httpx.HTTPError:
                self.over.wait(0.1)

    def measure(self, path: str, generation: int, race: dict[str, Any]) -> None:
        """Write a race into the ledger: it counts as measured from here on."""
        self.numbers += 1
        wobble = 0.001 * ((self.numbers * 5) % 7 - 3) / 3
        results = {
            arm["block_id"]: asdict(measure_steps(arm["overrides"], lambda _: 1.0, wobble))
            for arm in race["arms"]
        }
        first = f"{path}/races/{race['arms'][0]['block_id']}"
        self.keep(Report(first, {"generation": generation, "results": results}))
        if self.strikes("report changed", 0.5):
            changed = json.loads(json.dumps(results))
            next(iter(changed.values()))["switch_s"] = self.random.random()
            self.keep(Report(first, {"generation": generation, "results": changed}))

    def keep(self, report: Report) -> None:
        """As the spool does, before anything is sent."""
        self.waiting.append(report)
        self.counts.reports.append(report)

    def hand_in(self) -> None:
        """Hand in what waits, until the server decides; now and then once more after that."""
        for report in list(self.waiting):
            report.tries += 1
            reply = self.ask(report.path, report.body)
            answer = "accepted" if reply.is_success else DECIDED.get(reply.json().get("code", ""), "")
            if not answer:
                if reply.status_code == 401:
                    self.token = ""
                return
            if report.answer and report.answer != answer:
                self.counts.unexpected.append(f"{report.path}: {report.answer}, then {answer}")
            report.answer = answer
            if not self.strikes("report repeated", 1.0):
                self.waiting.remove(report)
