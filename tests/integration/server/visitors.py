"""Whom each route lets in: the one declaration of it, and visitors of every kind who try."""

import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.routing import BaseRoute, Mount, Route

from advisor.api.access import FailureCounter
from tests.integration.server.served import FakeAgent, Served
from tests.integration.server.stage import Stage
from tests.unit.services.scripted_tuning import make_spec

METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
NOBODY = ("no token", "garbage", "expired", "revoked", "used up")
MACHINES = ("enrolment", "another agent", "agent")
PEOPLE = ("viewer", "stranger", "owner", "team mate", "admin")
KINDS = (*NOBODY, *MACHINES, *PEOPLE)

READ = set(PEOPLE)
SUBMIT = {"stranger", "owner", "team mate", "admin"}
CHANGE = {"owner", "team mate", "admin"}
ADMIN = {"admin"}
AGENT = {"agent"}
ENROL = {"enrolment"}
EVERYBODY = set(KINDS)

ROUTES: dict[str, set[str]] = {
    "GET /livez": EVERYBODY,
    "GET /readyz": EVERYBODY,
    "GET /metrics": READ,
    "GET /docs": EVERYBODY,
    "GET /docs/oauth2-redirect": EVERYBODY,
    "GET /docs/static/*": EVERYBODY,
    "GET /api/v1/openapi.json": EVERYBODY,
    "GET /api/v1/jobs": READ,
    "POST /api/v1/jobs": SUBMIT,
    "GET /api/v1/jobs/{job_id}": READ,
    "POST /api/v1/jobs/{job_id}:cancel": CHANGE,
    "POST /api/v1/jobs/{job_id}:extend": CHANGE,
    "POST /api/v1/jobs/{job_id}:pause": CHANGE,
    "POST /api/v1/jobs/{job_id}:resume": CHANGE,
    "POST /api/v1/jobs/{job_id}:prioritise": CHANGE,
    "POST /api/v1/jobs/{job_id}/trials/{number}:repeat": CHANGE,
    "POST /api/v1/jobs/{job_id}:archive": CHANGE,
    "POST /api/v1/jobs/{job_id}:unarchive": CHANGE,
    "POST /api/v1/jobs/{job_id}:clone": SUBMIT,
    "DELETE /api/v1/jobs/{job_id}": CHANGE,
    "GET /api/v1/jobs/{job_id}/history": READ,
    "GET /api/v1/jobs/{job_id}/trials": READ,
    "GET /api/v1/jobs/{job_id}/blocks": READ,
    "GET /api/v1/jobs/{job_id}/sessions": READ,
    "GET /api/v1/jobs/{job_id}/telemetry": READ,
    "GET /api/v1/jobs/{job_id}/telemetry/series": READ,
    "GET /api/v1/jobs/{job_id}/events": READ,
    "GET /api/v1/jobs/{job_id}/events/stream": READ,
    "GET /api/v1/jobs/{job_id}/logs": READ,
    "GET /api/v1/jobs/{job_id}/advice": READ,
    "GET /api/v1/jobs/{job_id}/forecast": READ,
    "GET /api/v1/jobs/{job_id}/race": READ,
    "GET /api/v1/jobs/{job_id}/pareto": READ,
    "GET /api/v1/jobs/{job_id}/strategy": READ,
    "GET /api/v1/jobs/{job_id}/runs": READ,
    "PUT /api/v1/jobs/{job_id}/runs/{run_id}": CHANGE,
    "GET /api/v1/agents": READ,
    "POST /api/v1/agents": ENROL,
    "POST /api/v1/agents/{agent_id}:readmit": ADMIN,
    "POST /api/v1/agents/{agent_id}:drain": ADMIN,
    "POST /api/v1/agents/{agent_id}:resume": ADMIN,
    "DELETE /api/v1/agents/{agent_id}": ADMIN,
    "POST /api/v1/agents/{agent_id}/poll": AGENT,
    "POST /api/v1/sessions/{session_id}/beat": AGENT,
    "POST /api/v1/sessions/{session_id}/hello": AGENT,
    "POST /api/v1/sessions/{session_id}/next": AGENT,
    "POST /api/v1/sessions/{session_id}/races/{race_id}": AGENT,
    "POST /api/v1/sessions/{session_id}/trouble": AGENT,
    "POST /api/v1/sessions/{session_id}/end": AGENT,
    "POST /api/v1/tokens": ADMIN,
    "GET /api/v1/tokens": ADMIN,
    "POST /api/v1/tokens/{token_id}:rotate": ADMIN,
    "DELETE /api/v1/tokens/{token_id}": ADMIN,
    "GET /api/v1/knobs": READ,
    "GET /api/v1/export-formats": READ,
    "GET /api/v1/strategy-schema": READ,
    # The pages: these know a person by the cookie that signing in sets, and never by a token in a header.
    "GET /": EVERYBODY,
    "GET /static/*": EVERYBODY,
    "GET /plotly/*": EVERYBODY,
    "GET /login": EVERYBODY,
    "GET /enter/{secret}": EVERYBODY,
    "POST /login": EVERYBODY,
    "POST /theme": EVERYBODY,
    "GET /jobs": READ,
    "GET /jobs/new": SUBMIT,
    "POST /jobs/new": SUBMIT,
    "POST /jobs/new/plan": SUBMIT,
    "GET /jobs/{job_id}": READ,
    "GET /jobs/{job_id}/trials": READ,
    "GET /jobs/{job_id}/trials.csv": READ,
    "GET /jobs/{job_id}/trials/{number}": READ,
    "GET /jobs/{job_id}/compare": READ,
    "GET /jobs/{job_id}/explore": READ,
    "GET /jobs/{job_id}/what-if": READ,
    "GET /jobs/{job_id}/log": READ,
    "GET /jobs/{job_id}/export": READ,
    "GET /jobs/{job_id}/export/file": READ,
    "GET /jobs/{job_id}/export/bundle": READ,
    "GET /jobs/{job_id}/export/report": READ,
    "POST /jobs/{job_id}/cancel": CHANGE,
    "POST /jobs/{job_id}/pause": CHANGE,
    "POST /jobs/{job_id}/resume": CHANGE,
    "POST /jobs/{job_id}/continue": CHANGE,
    "POST /jobs/{job_id}/trials/{number}/repeat": CHANGE,
    "GET /jobs/{job_id}/live": READ,
    "GET /compare": READ,
    "GET /agents": READ,
    "POST /agents/{agent_id}/drain": ADMIN,
    "POST /agents/{agent_id}/resume": ADMIN,
    "POST /agents/{agent_id}/remove": ADMIN,
    "GET /knobs": READ,
    "GET /tokens": ADMIN,
    "POST /tokens": ADMIN,
    "POST /tokens/{token_id}/rotate": ADMIN,
    "POST /tokens/{token_id}/revoke": ADMIN,
    # Last: the visit is over then.
    "POST /logout": READ,
}
"""Whom each route lets in. A route that is not listed fails the test; listing it here is a decision."""


def list_routes(routes: Sequence[BaseRoute], prefix: str = "") -> Iterator[tuple[str, BaseRoute]]:
    """Every route as `METHOD path`; static files, which have none of their own, end in an asterisk."""
    for found in iter_route_contexts(routes):
        route = found.original_route
        if isinstance(route, Mount):
            inner = getattr(route.app, "routes", None)
            if inner is not None:
                yield from list_routes(inner, prefix + route.path)
            elif route.path not in {"", "/api/v1"}:
                yield f"GET {prefix}{route.path}/*", route
            continue
        assert isinstance(route, Route), f"{route} is neither a route nor a mount: say here whom it lets in"
        # Starlette answers HEAD wherever it answers GET; it is asked for by name below.
        for method in sorted((found.methods or set()) - {"HEAD"}):
            yield f"{method} {prefix}{found.path}", route


def is_of_the_api(template: str) -> bool:
    """Whether a token opens it; pages know a person by a cookie."""
    return template.startswith("/api/v1") or template == "/metrics"


def compile_template(template: str) -> re.Pattern[str]:
    """What addresses this route answers."""
    return re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)).replace(r"\*", ".+"))


def find_pages(app: FastAPI) -> FastAPI:
    """The pages, which are built at their first request and mounted behind everything else."""
    late: Any = next(route for route in app.routes if isinstance(route, Mount) and not route.path).app
    pages: FastAPI = late._pages.app
    return pages


class Visitors:
    """Everybody who may come, on a server with a job in the middle of a session and a job that somebody owns."""

    def __init__(self, server: Served) -> None:
        self.server, self.stage = server, Stage(server)
        tokens = {
            "no token": "",
            "garbage": "adv_admin_0000000000_garbage",
            "expired": server.token("admin", expires_s=0.001),
            "revoked": server.token("admin"),
            "used up": server.token("agent", uses=1),
            "enrolment": server.enrolment,
            "another agent": FakeAgent(server, "two").token,
            "agent": self.stage.agent.token,
            "viewer": server.token("viewer", label="ada", team="vision"),
            "stranger": server.token("submitter", label="eve", team="speech"),
            "owner": server.token("submitter", label="ada", team="vision"),
            "team mate": server.token("submitter", label="bob", team="vision"),
            "admin": server.admin,
        }
        assert server.ask("DELETE", f"/tokens/{tokens['revoked'].split('_')[2]}").status_code == 204
        assert server.register("spare", tokens["used up"]).status_code == 200
        self.tokens = tokens
        spec = make_spec(name="ada's").model_dump(mode="json")
        self.job_id = server.ask("POST", "/jobs", tokens["owner"], json=spec).json()["id"]
        # It waits for ever, so that cancelling it ends it at once.
        self.over_id = server.submit(nodes=50).id
        assert server.ask("POST", f"/jobs/{self.over_id}:cancel").status_code == 200
        self.cookies = {kind: self.sign_in(token) for kind, token in tokens.items()}
        self.form_keys = {kind: self.read_form_key(cookie) for kind, cookie in self.cookies.items()}

    def sign_in(self, token: str) -> str:
        """The cookie that signing in with this token gives; "" where it gives none."""
        self.server.http.cookies.clear()
        self.server.http.post("/login", data={"token": token}, follow_redirects=False)
        cookie = self.server.http.cookies.get("advisor") or ""
        self.server.http.cookies.clear()
        return cookie

    def read_form_key(self, cookie: str) -> str:
        """The key of this person's forms."""
        page = self.server.http.get("/knobs", headers={"Cookie": f"advisor={cookie}"}, follow_redirects=False)
        return page.text.partition('name="form_key" value="')[2].partition('"')[0]

    def fill(self, template: str) -> str:
        """A path about what exists."""
        assert self.stage.agent.place is not None
        places = {
            # Who follows a job that goes on is not answered before it ends.
            "{job_id}": self.over_id if template.endswith("/live") else self.job_id,
            "{agent_id}": self.stage.agent.id,
            "{session_id}": self.stage.agent.place.session_id,
            "{race_id}": self.stage.race_id,
            "{run_id}": "0123456789abcdef",
            "{token_id}": "nothing",
            "{number}": "0",
            "*": "advisor.css",
        }
        for name, value in places.items():
            template = template.replace(name, value)
        return template

    def ask_api(self, kind: str, method: str, template: str, more: dict[str, str] | None = None) -> Any:
        """Ask with this visitor's token, and with an administrator's cookie, which must open nothing here."""
        document = self.stage.documents.get(f"{method} {template.removeprefix('/api/v1')}", ("", "", "", {}))[
            3
        ]
        if template == "/api/v1/agents":
            document = document | {"name": "three", "secret": "of three"}
        headers = {"Cookie": f"advisor={self.cookies['admin']}"} | (more or {})
        if self.tokens[kind]:
            headers["Authorization"] = f"Bearer {self.tokens[kind]}"
        self.server.app.state.failures = FailureCounter(time.monotonic)
        return self.server.http.request(method, self.fill(template), headers=headers, json=document)

    def ask_page(self, kind: str, method: str, template: str, more: dict[str, str] | None = None) -> Any:
        """Ask with this visitor's cookie, and with an administrator's token, which must open nothing here."""
        cookie = self.cookies[kind]
        headers = {"Cookie": f"advisor={cookie or 'garbage'}", "Authorization": f"Bearer {self.server.admin}"}
        headers |= more or {}
        data = {"form_key": self.form_keys.get(kind, ""), "minutes": "5"}
        return self.server.http.request(
            method,
            self.fill(template),
            headers=headers,
            params={"format": "strategy-json", "after": "1000000"},
            data=data if method == "POST" else None,
            follow_redirects=False,
        )

    def ask(self, kind: str, method: str, template: str, more: dict[str, str] | None = None) -> Any:
        """Ask as this kind of visitor would, with more headers."""
        return (self.ask_api if is_of_the_api(template) else self.ask_page)(kind, method, template, more)

    def look(self) -> Any:
        """What nobody may change who is kept out."""
        jobs = self.server.ask("GET", "/jobs").json()["items"]
        history = self.server.history(self.stage.job.id)
        return (
            [
                {**token, "last_used_at": "whenever"}
                for token in self.server.ask("GET", "/tokens").json()["items"]
            ],
            {job["id"]: (job["spec"], job["state"].startswith("cancel")) for job in jobs},
            self.server.ask("GET", f"/jobs/{self.job_id}/runs").json(),
            [agent["name"] for agent in self.server.ask("GET", "/agents").json()["items"]],
            [(session.id, session.state, session.outcome) for session in history.sessions],
            [block.state for block in history.blocks],
        )
