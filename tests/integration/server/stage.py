"""A server with a job in the middle of a session, and a document for every route that takes one."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from tests.integration.server.served import FakeAgent, Served, start_gang
from tests.unit.services.scripted_tuning import make_facts, make_node, make_result, make_spec

TELEMETRY: dict[str, Any] = {
    "age_s": 0.5, "cpu": 0.5, "session_cpu": 0.4, "memory_bytes": 10**9, "gap_s": 0.0,
    "network_sent_bytes_per_s": 1.0, "network_received_bytes_per_s": 1.0,
    "errors": [{"device": 0, "code": 79}],
    "devices": [{
        "index": 0, "busy": 0.5, "memory_bytes": 10**9, "power_w": 300.0, "sm_clock_mhz": 1500,
        "temperature_c": 60, "throttled": "power", "sm_active": 0.5, "tensor_active": 0.1,
        "pcie_sent_bytes_per_s": 1.0, "pcie_received_bytes_per_s": 1.0, "nvlink_sent_bytes_per_s": 1.0,
        "nvlink_received_bytes_per_s": 1.0, "ecc_uncorrected": 0,
    }],
}  # fmt: skip
NODE = make_node("one").model_dump(mode="json") | {
    "devices": [{"index": 0, "uuid": "GPU-1", "name": "H200", "memory_bytes": 10**11, "driver": "580"}],
    "links": [{"name": "eth0", "address": "10.0.0.1", "bits_per_second": 10**9}],
    "rdma": ["mlx5_0"],
    "pool": "gpu",
    "labels": {"rack": "7"},
    "signed_only": False,
}
RUN = {"host": "h", "ranks": 2, "step": 5, "step_s": 0.1, "samples_per_s": 9.0, "low": 1.0,
       "event": "below", "sentence": "Slower."}  # fmt: skip


class Stage:
    """A server with a job in the middle of a session, and a document for every route that takes one."""

    def __init__(self, server: Served) -> None:
        self.server = server
        self.job = server.submit()
        self.agent = agent = FakeAgent(server, "one", secret="its own")
        start_gang(agent)
        agent.hello()
        race = agent.next()["race"]
        assert agent.place is not None
        session, generation = f"/sessions/{agent.place.session_id}", {"generation": agent.place.generation}
        ids = [arm["block_id"] for arm in race["arms"]]
        self.race_id: str = ids[0]
        facts = make_facts().model_dump(mode="json")
        result = asdict(make_result(0.1))
        trouble = {"code": "no_ddp", "sentence": "It has none.", "fatal": False}
        registration = {
            "name": "one",
            "node": NODE,
            "secret": "its own",
            "protocol_major": 2,
            "ends_in_s": 3600.0,
        }
        beat = {"state": "running", "rendezvous": "h:1", "steps": 3, "telemetry": {"samples": [TELEMETRY]}}
        self.documents: dict[str, tuple[str, str, str, Any]] = {
            "POST /jobs": ("POST", "/jobs", server.admin, _describe_job()),
            "POST /jobs/{job_id}:extend": (
                "POST", f"/jobs/{self.job.id}:extend", server.admin, {"more_seconds": 60.0, "more_trials": 1}
            ),
            "POST /jobs/{job_id}:prioritise": (
                "POST", f"/jobs/{self.job.id}:prioritise", server.admin, {"priority": "low"}
            ),
            "PUT /jobs/{job_id}/runs/{run_id}": (
                "PUT", f"/jobs/{self.job.id}/runs/0123456789abcdef", server.admin, RUN
            ),
            "POST /tokens": (
                "POST", "/tokens", server.admin,
                {"role": "viewer", "label": "x", "team": "y", "expires_s": 5.0, "uses": None},
            ),
            "POST /tokens/{token_id}:rotate": (
                "POST", f"/tokens/{server.token('viewer').split('_')[2]}:rotate", server.admin,
                {"grace_s": 5.0, "expires_s": 5.0},
            ),
            "POST /sessions/{session_id}/beat": (
                "POST", f"{session}/beat", agent.token, generation | beat | {"news": 1, "log": "a line"}
            ),
            "POST /sessions/{session_id}/hello": (
                "POST", f"{session}/hello", agent.token,
                generation | {"facts": facts, "baseline": {"num_threads": 2}, "refusals": {"amp": "No."}},
            ),
            "POST /sessions/{session_id}/next": ("POST", f"{session}/next", agent.token, generation),
            "POST /sessions/{session_id}/races/{race_id}": (
                "POST", f"{session}/races/{ids[0]}", agent.token,
                generation | {"results": dict.fromkeys(ids, result)},
            ),
            "POST /sessions/{session_id}/trouble": ("POST", f"{session}/trouble", agent.token, trouble),
            "POST /sessions/{session_id}/end": (
                "POST", f"{session}/end", agent.token,
                generation | {"outcome": "finished", "reason": "Done.", "log_tail": "x", "total_steps": 9},
            ),
            "POST /agents": ("POST", "/agents", server.enrolment, registration),
            "POST /agents/{agent_id}:drain": (
                "POST", f"/agents/{agent.id}:drain", server.admin, {"reason": "Its fan is replaced."}
            ),
        }  # fmt: skip

    def send(self, name: str, body: bytes) -> Any:
        """Send a body to a route."""
        method, path, token, _ = self.documents[name]
        return self.server.ask(
            method, path, token, content=body, headers={"Content-Type": "application/json"}
        )

    def assert_everything_can_be_read(self) -> None:
        """Every answer and every page about what is stored is there, and is JSON where it says so."""
        self.assert_pages_can_be_read()
        job = f"/jobs/{self.job.id}"
        for path in (
            "/jobs", job, f"{job}/history", f"{job}/trials", f"{job}/blocks", f"{job}/sessions", f"{job}/telemetry",
            f"{job}/telemetry/series", f"{job}/events", f"{job}/logs", f"{job}/runs", f"{job}/pareto", "/agents",
            "/tokens",
        ):  # fmt: skip
            reply = self.server.ask("GET", path)
            assert reply.status_code == 200, (path, reply.text[:300])
            json.loads(reply.content, parse_constant=pytest.fail)

    def assert_pages_can_be_read(self) -> None:
        """Every page about what is stored is there."""
        pages = self.server.http
        if "advisor" not in pages.cookies:
            assert pages.post("/login", data={"token": self.server.admin}).status_code == 200
        job = f"/jobs/{self.job.id}"
        for path in ("/jobs", job, f"{job}/trials/0", f"{job}/log", "/agents", "/tokens"):
            assert pages.get(path).status_code == 200, path


def _describe_job() -> dict[str, Any]:
    """A job with what is calculated before it is stored: samples by an expression, and a range of its own."""
    job: dict[str, Any] = make_spec().model_dump(mode="json")
    workload = {**job["workload"], "own": ["micro=1..64:log"], "samples_per_step": "2 * micro"}
    return {**job, "workload": workload}
