"""A small server that hands out sessions: the agents' half of the API over real HTTP."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from advisor.protocol.measured.messages import AgentRegistered, Assignment, BeatReply, NextReply, PollReply
from advisor.protocol.measured.results import RaceRules
from advisor.protocol.measured.trials import BlockPlan, RacePlan, SessionState
from advisor.protocol.training.workload import WITH_SECRETS, Workload
from advisor.protocol.views import RaceAccepted

TOKEN = "adv_agent_canary_secret"
OWN_TOKEN = "adv_agent_canary_own"
_CODES = {401: "unauthenticated", 404: "agent_not_found", 409: "stale_session"}
"""What the server itself says with that status."""


@dataclass
class FakeSession:
    """One session as the fake server sees it."""

    assignments: dict[str, Assignment]
    """By agent."""
    plans: list[BlockPlan]
    """Each is a race of one arm."""
    state: SessionState = SessionState.ASSEMBLING
    ready: set[str] = field(default_factory=set)
    rendezvous: str | None = None
    beats: list[dict[str, Any]] = field(default_factory=list)
    hellos: list[dict[str, Any]] = field(default_factory=list)
    blocks: dict[str, dict[str, Any]] = field(default_factory=dict)
    ends: list[dict[str, Any]] = field(default_factory=list)

    @property
    def log(self) -> str:
        """Everything the agents sent of the log."""
        return "".join(beat["log"] for beat in self.beats)


class FakeServer:
    """Speaks the agents' half of the API over real HTTP."""

    def __init__(self, fence_s: float = 18.0) -> None:
        self.registered = AgentRegistered(
            agent_id="", token=OWN_TOKEN, poll_s=0.3, beat_s=0.2, lease_s=5.0, fence_s=fence_s
        )
        self.sessions: dict[str, FakeSession] = {}
        self.agents: set[str] = set()
        self.refuse: Callable[[str], int | None] = lambda path: None
        """A status to answer a path with instead."""
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.removeprefix("/api/v1/")
                token = TOKEN if path == "agents" else OWN_TOKEN
                if self.headers.get("Authorization") != f"Bearer {token}":
                    return self._refuse(401)
                status = server.refuse(path)
                if status is not None:
                    return self._refuse(status)
                return self._answer(200, server.answer(path, json.loads(body) if body else {}))

            def _refuse(self, status: int) -> None:
                code = _CODES.get(status, "fake")
                kind = f"urn:fleet-advisor:problem:{code}"
                self._answer(status, {"type": kind, "code": code, "detail": "Refused by the test."})

            def _answer(self, status: int, reply: dict[str, Any]) -> None:
                data = json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                return None

        class QuietServer(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """A peer that was killed in the middle of a request is what these tests are about."""

        self._http = QuietServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def assign(
        self, session_id: str, workload: Workload, agents: tuple[str, ...], plans: int = 0, **settings: Any
    ) -> FakeSession:
        """Hand a session to the agents at their next poll."""
        assignments = {
            agent: Assignment(
                session_id=session_id,
                generation=1,
                job_id="job",
                node_rank=rank,
                nnodes=len(agents),
                workload=workload,
                **settings,
            )
            for rank, agent in enumerate(agents)
        }
        measured = [
            BlockPlan(
                block_id=f"b{n}",
                trial_number=n,
                rules=RaceRules(warmup_steps=1, min_steps=5, max_steps=5, target_s=0.1),
            )
            for n in range(plans)
        ]
        session = FakeSession(assignments, measured)
        with self._lock:
            self.sessions[session_id] = session
        return session

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        parts = path.split("/")
        with self._lock:
            if parts == ["agents"]:
                self.agents.add(body["name"])
                return self.registered.model_copy(update={"agent_id": body["name"]}).model_dump(mode="json")
            if parts[0] == "agents":
                assignment = next(
                    (
                        s.assignments.pop(parts[1])
                        for s in self.sessions.values()
                        if parts[1] in s.assignments
                    ),
                    None,
                )
                if assignment is None:
                    time.sleep(0.05)
                return PollReply(assignment=assignment).model_dump(mode="json", context=WITH_SECRETS)
            return self._answer_session(self.sessions[parts[1]], parts[2:], body)

    def _answer_session(self, session: FakeSession, verb: list[str], body: dict[str, Any]) -> dict[str, Any]:
        if verb == ["beat"]:
            session.beats.append(body)
            if body["rendezvous"]:
                session.rendezvous = body["rendezvous"]
            if not session.assignments and session.rendezvous and session.state is SessionState.ASSEMBLING:
                session.state = SessionState.RUNNING
            rendezvous = session.rendezvous if session.state is SessionState.RUNNING else None
            return BeatReply(state=session.state, rendezvous=rendezvous).model_dump(mode="json")
        if verb == ["hello"]:
            session.hellos.append(body)
        elif verb == ["next"]:
            plan = next((plan for plan in session.plans if plan.block_id not in session.blocks), None)
            because = "" if plan else "Everything is measured."
            if plan is None:
                session.state = SessionState.ENDING
            race = RacePlan(arms=(plan,)) if plan else None
            return NextReply(race=race, end_because=because).model_dump(mode="json")
        elif verb[0] == "races":
            session.blocks |= body["results"]
            return RaceAccepted(race_id=verb[1], sentence="It counts.").model_dump(mode="json")
        elif verb == ["end"]:
            session.ends.append(body)
            session.state = SessionState.ENDING
        return {}
