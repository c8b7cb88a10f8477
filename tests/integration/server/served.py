"""A running application, and how tests speak to it."""

import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from fastapi.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from advisor.app import create_app, read_clock
from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.measured.messages import AgentRegistered, Assignment, RegisterAgent
from advisor.protocol.measured.trials import JobHistory
from advisor.protocol.training.workload import WITH_SECRETS
from advisor.settings import Settings
from advisor.tuning.asked import Tuning
from tests.unit.services.scripted_tuning import ScriptedTuning, make_facts, make_node, make_result, make_spec

PATIENCE_S = 30.0
Found = TypeVar("Found")


class LosesReplies:
    """Lets requests be served and then loses their answers, when told to: the client sees a broken server."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.left = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, and answer 503 instead of what was answered while there are replies left to lose."""
        if scope["type"] != "http" or self.left == 0:
            await self.app(scope, receive, send)
            return
        self.left -= 1

        async def swallow(_: Message) -> None:
            return

        await self.app(scope, receive, swallow)
        await send({"type": "http.response.start", "status": 503, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class Served:
    """One server from its start to its stop."""

    def __init__(
        self,
        data_dir: Path,
        tuning: Tuning | None = None,
        clock: Callable[[], datetime] = read_clock,
        **settings: object,
    ) -> None:
        quick: dict[str, Any] = {"poll_s": 0.2, "look_s": 0.02, "tick_s": 0.05} | settings
        self.settings = Settings(data_dir=data_dir, **quick)
        self.app = create_app(self.settings, tuning=tuning or ScriptedTuning(), clock=clock)
        self.loses = LosesReplies(self.app)
        self.http = TestClient(self.loses, base_url="http://localhost", raise_server_exceptions=False)
        self.http.__enter__()
        self.admin = (data_dir / "admin-token").read_text().strip()
        self.enrolment = (data_dir / "agent-token").read_text().strip()

    def stop(self) -> None:
        """Stop it; may be repeated."""
        if self.http is not None:
            self.http.__exit__(None, None, None)
            self.http = None  # type: ignore[assignment]

    def ask(self, method: str, path: str, token: str | None = None, **request: Any) -> Any:
        """Send a request as the administrator, or with another token; `token=""` sends none."""
        token = self.admin if token is None else token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        headers |= request.pop("headers", {})
        return self.http.request(method, f"/api/v1{path}", headers=headers, **request)

    def register(self, name: str, token: str, secret: str = "its own", **node: object) -> Any:
        """Introduce an agent; other words are fields of its node."""
        described = make_node(name).model_copy(update=node)
        message = RegisterAgent(name=name, node=described, secret=secret)
        return self.ask("POST", "/agents", token, json=message.model_dump(mode="json"))

    def token(self, role: str, **wanted: Any) -> str:
        """Make a token of a role."""
        reply = self.ask("POST", "/tokens", json={"role": role, "label": f"a {role}"} | wanted)
        assert reply.status_code == 201, reply.text
        return str(reply.json()["token"])

    def submit(self, **fields: Any) -> Job:
        """Submit a job."""
        reply = self.ask(
            "POST", "/jobs", json=make_spec(**fields).model_dump(mode="json", context=WITH_SECRETS)
        )
        assert reply.status_code == 201, reply.text
        return Job.model_validate(reply.json())

    def job(self, job_id: str) -> Job:
        """Look at a job."""
        return Job.model_validate(self.ask("GET", f"/jobs/{job_id}").json())

    def history(self, job_id: str) -> JobHistory:
        """Look at everything measured for a job."""
        return JobHistory.model_validate(self.ask("GET", f"/jobs/{job_id}/history").json())

    def await_state(self, job_id: str, state: JobState) -> Job:
        """Wait until a job is in a state."""
        return wait_for(lambda: job if (job := self.job(job_id)).state is state else None, f"job is {state}")


class FakeAgent:
    """An agent that speaks the protocol and starts nothing."""

    def __init__(self, server: Served, name: str, secret: str = "its own", **node: object) -> None:
        self.server, self.name = server, name
        reply = server.register(name, server.enrolment, secret, **node)
        assert reply.status_code == 200, reply.text
        registered = AgentRegistered.model_validate(reply.json())
        self.id, self.token = registered.agent_id, registered.token
        self.place: Assignment | None = None
        self.told: list[str] = []
        """The log lines of its beats."""
        self.news = 0

    def moved_to(self, server: Served) -> "FakeAgent":
        """The same agent speaking to a restarted server."""
        self.server = server
        return self

    def say(self, what: str, **body: Any) -> Any:
        """Send a message about the session it holds."""
        assert self.place is not None
        generation = {} if what == "trouble" else {"generation": self.place.generation}
        return self.server.ask(
            "POST", f"/sessions/{self.place.session_id}/{what}", self.token, json=generation | body
        )

    def poll(self) -> Assignment | None:
        """Ask for work once."""
        reply = self.server.ask("POST", f"/agents/{self.id}/poll", self.token)
        assert reply.status_code == 200, reply.text
        found = reply.json()["assignment"]
        return Assignment.model_validate(found) if found else None

    def take_place(self) -> Assignment:
        """Ask for work until there is some."""
        self.place = wait_for(self.poll, f"work for {self.name}")
        return self.place

    def beat(self, state: str = "running", **more: Any) -> Any:
        """Renew the session, with a line of log where no other is given; return the answer's body."""
        assert self.place is not None
        self.news += 1
        if "log" not in more:
            self.told.append(f"{self.name} beats {len(self.told) + 1}")
            more |= {"log": f"{self.told[-1]}\n"}
        more = {"news": self.news} | more
        rendezvous = {"rendezvous": "127.0.0.1:29500"} if self.place.node_rank == 0 else {}
        reply = self.say("beat", state=state, **rendezvous, **more)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def hello(self) -> None:
        """Say what the runtime saw."""
        facts = make_facts().model_dump(mode="json")
        assert self.say("hello", facts=facts, baseline={"fuse_grad_size_in_MB": 25.0}).status_code == 204

    def next(self) -> Any:
        """Ask what is to be measured; return the answer's body."""
        reply = self.say("next")
        assert reply.status_code == 200, reply.text
        return reply.json()

    def report(self, race: Any, step_s: float = 0.1, **wrong: object) -> Any:
        """Report a race: the same steps for every arm."""
        result = asdict(make_result(step_s)) | wrong
        ids = [arm["block_id"] for arm in race["arms"]]
        return self.say(f"races/{ids[0]}", results=dict.fromkeys(ids, result))

    def end(self, outcome: str = "finished", reason: str = "The session ended.") -> Any:
        """Say that every rank is gone."""
        return self.say("end", outcome=outcome, reason=reason)

    def measure_all(self) -> int:
        """Measure until the server says that the session is over; return how many races that were."""
        count = 0
        while (race := self.next()["race"]) is not None:
            assert self.report(race).status_code == 200
            count += 1
        return count


def start_gang(*agents: FakeAgent) -> None:
    """Let agents take up their places until the session runs."""
    for agent in agents:
        agent.take_place()
    for _ in range(2):
        for agent in agents:
            agent.beat("ready")


def wait_for(look: Callable[[], Found | None], what: str) -> Found:
    """Look until there is something; fails after a while."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := look()) is None:
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.01)
    return found
