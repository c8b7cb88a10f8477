"""Who may do what: every route with every kind of token, and what happens to strangers."""

import pkgutil
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

import advisor.api
from advisor.api.access import AGENTS
from advisor.api.strict_json import StrictRoute
from advisor.app import configure_server
from advisor.protocol.messages import PROTOCOL_MAJOR
from tests.integration.server.served import FakeAgent, Served

READ = {"viewer", "submitter", "admin"}
WRITE = {"submitter", "admin"}
ADMIN = {"admin"}
AGENT = {"agent"}
PUBLIC = {"GET /livez", "GET /readyz"}
EXPECTED = {
    "GET /api/v1/jobs": READ,
    "POST /api/v1/jobs": WRITE,
    "GET /api/v1/jobs/{job_id}": READ,
    "POST /api/v1/jobs/{job_id}:cancel": WRITE,
    "POST /api/v1/jobs/{job_id}/continue": WRITE,
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
    "GET /api/v1/jobs/{job_id}/pareto": READ,
    "GET /api/v1/jobs/{job_id}/strategy": READ,
    "GET /api/v1/agents": READ,
    "POST /api/v1/agents": AGENT,
    "POST /api/v1/agents/{agent_id}:readmit": ADMIN,
    "POST /api/v1/agents/{agent_id}:drain": ADMIN,
    "POST /api/v1/agents/{agent_id}:resume": ADMIN,
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
    "GET /api/v1/jobs/{job_id}/runs": READ,
    "PUT /api/v1/jobs/{job_id}/runs/{run_id}": WRITE,
}


def test_every_route_lets_in_exactly_the_roles_of_the_list(server: Served) -> None:
    document = server.app.openapi()
    routes = {
        f"{method.upper()} {path}" for path, operations in document["paths"].items() for method in operations
    }
    assert routes == EXPECTED.keys() | PUBLIC
    agent = FakeAgent(server, "one")
    tokens = {role: server.token(role) for role in ("viewer", "submitter", "admin")} | {"agent": agent.token}
    for route, allowed in EXPECTED.items():
        method, template = route.split()
        path = template.removeprefix("/api/v1").replace("{agent_id}", agent.id)
        for name in ("job_id", "session_id", "block_id", "token_id"):
            path = path.replace(f"{{{name}}}", "nothing")
        assert server.ask(method, path, "", json={}).status_code == 401, route
        for role, token in tokens.items():
            status = server.ask(method, path, token, json={}).status_code
            if role in allowed:
                assert status not in {401, 403}, (route, role, status)
                assert status < 500, (route, role, status)
            else:
                assert status == 403, (route, role, status)


def test_no_route_hides_from_the_list() -> None:
    for found in pkgutil.iter_modules(advisor.api.__path__):
        router = getattr(import_module(f"advisor.api.{found.name}"), "router", None)
        for route in router.routes if router else ():
            assert route.include_in_schema
            assert isinstance(route, APIRoute if found.name == "health" else StrictRoute)


@pytest.mark.parametrize(
    "token",
    ["x", "adv_admin_id_secret", "adv_admin__", "adv_admin_\u00e9_x".encode("latin-1"), "adv_" + "a" * 5000],
)
def test_token_that_is_none_is_refused(server: Served, token: str | bytes) -> None:
    header = b"Bearer " + token if isinstance(token, bytes) else f"Bearer {token}"
    reply = server.ask("GET", "/jobs", "", headers={"Authorization": header})
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"


def test_revoked_token_is_refused_at_once(server: Served) -> None:
    token = server.token("viewer")
    assert server.ask("GET", "/jobs", token).status_code == 200
    token_id = token.split("_")[2]
    assert server.ask("DELETE", f"/tokens/{token_id}").status_code == 204
    assert server.ask("DELETE", f"/tokens/{token_id}").status_code == 204
    assert server.ask("GET", "/jobs", token).status_code == 401
    listed = server.ask("GET", "/tokens").json()["items"]
    assert next(item for item in listed if item["id"] == token_id)["revoked_at"]
    assert token.split("_", 3)[3] not in str(listed)


def test_guessing_tokens_is_slowed_down_and_right_ones_still_work(server: Served) -> None:
    codes = [server.ask("GET", "/jobs", "adv_admin_id_guess").status_code for _ in range(40)]
    assert codes[0] == 401
    assert codes[-1] == 429
    assert server.ask("GET", "/jobs").status_code == 200


def ask_through(server: Served, peer: str, forwarded: str, path: str, **request: Any) -> int:
    """The status of a request as the configured server hears it, from `peer` on behalf of `forwarded`."""
    config = configure_server(server.app, server.settings)
    config.load()
    client = TestClient(config.loaded_app, base_url="http://localhost", client=(peer, 4711))  # type: ignore[arg-type]
    headers = {"X-Forwarded-For": forwarded} | request.pop("headers", {})
    status: int = client.request("POST" if request else "GET", path, headers=headers, **request).status_code
    return status


WRONG = {"Authorization": "Bearer adv_admin_id_guess"}


def test_guesses_are_counted_by_the_real_peer(server: Served) -> None:
    forwarded = [f"10.0.{number}.1" for number in range(40)]
    codes = {ask_through(server, "127.0.0.1", peer, "/api/v1/jobs?", headers=WRONG) for peer in forwarded}
    assert codes == {401, 429}


def test_guesses_are_counted_by_whom_a_trusted_proxy_names(start: object) -> None:
    server: Served = start(trusted_proxies=("10.9.0.0/16",))  # type: ignore[operator]
    for peer in (f"10.0.{number}.1" for number in range(40)):
        assert ask_through(server, "10.9.1.1", peer, "/api/v1/jobs", headers=WRONG) == 401
    codes = [ask_through(server, "10.8.1.1", "10.0.0.1", "/api/v1/jobs", headers=WRONG) for _ in range(40)]
    assert codes[-1] == 429


def test_guesses_at_the_sign_in_page_are_counted_too(server: Served) -> None:
    data = {"token": "adv_admin_id_guess"}
    codes = [ask_through(server, "127.0.0.1", "10.0.0.1", "/login", data=data) for _ in range(40)]
    assert (codes[0], codes[-1]) == (401, 429)
    assert ask_through(server, "10.8.0.1", "10.0.0.1", "/login", data=data) == 401
    assert server.http.post("/login", data=data).status_code == 401
    assert ask_through(server, "127.0.0.1", "10.0.0.1", "/login", data={"token": server.admin}) == 200


def test_stream_ends_with_its_token_and_after_its_time(start: object) -> None:
    server: Served = start(stream_s=3600)  # type: ignore[operator]
    path = f"/jobs/{server.submit().id}/events/stream"
    received: list[Any] = []
    # It expires while it is listened with; revoking it is told by the same question.
    token = server.token("viewer", expires_s=2)
    listener = threading.Thread(target=lambda: received.append(server.ask("GET", path, token)), daemon=True)
    listener.start()
    listener.join(timeout=30)
    assert [reply.status_code for reply in received] == [200]
    assert "event: end" not in received[0].text
    server.stop()
    brief: Served = start(stream_s=0.05)  # type: ignore[operator]
    assert brief.ask("GET", path).status_code == 200


def test_first_tokens_are_private_and_no_secret_is_stored(server: Served, tmp_path: Path) -> None:
    for name in ("admin-token", "agent-token"):
        path = tmp_path / name
        assert path.stat().st_mode & 0o777 == 0o600
        secret = path.read_text().strip().split("_", 3)[3].encode()
        for stored in tmp_path.glob("advisor.db*"):
            assert secret not in stored.read_bytes()


def test_deleted_token_file_is_written_anew_at_the_next_start(start: object, tmp_path: Path) -> None:
    first = start()  # type: ignore[operator]
    first.stop()
    (tmp_path / "admin-token").unlink()
    second = start()  # type: ignore[operator]
    assert second.admin != first.admin
    assert second.enrolment == first.enrolment
    assert second.ask("GET", "/tokens").status_code == 200


def test_enrolment_token_only_registers(server: Served) -> None:
    agent = FakeAgent(server, "one")
    reply = server.ask("POST", f"/agents/{agent.id}/poll", server.enrolment)
    assert (reply.status_code, reply.json()["code"]) == (403, "forbidden")
    assert server.ask("POST", "/sessions/x/next", server.enrolment, json={"generation": 1}).status_code == 403


def test_agents_own_token_registers_no_other_agent(server: Served) -> None:
    agent = FakeAgent(server, "one")
    node = {"hostname": "x", "cpu_count": 1, "memory_bytes": 1}
    reply = server.ask("POST", "/agents", agent.token, json={"name": "two", "node": node})
    assert reply.status_code == 403
    assert AGENTS


def test_agent_of_another_protocol_is_told_to_upgrade(server: Served) -> None:
    node = {"hostname": "x", "cpu_count": 1, "memory_bytes": 1}
    body = {"name": "two", "node": node, "protocol_major": PROTOCOL_MAJOR + 1, "a_newer_field": True}
    reply = server.ask("POST", "/agents", server.enrolment, json=body)
    assert (reply.status_code, reply.json()["code"]) == (426, "protocol_mismatch")
    mine = body | {"protocol_major": PROTOCOL_MAJOR}
    assert server.ask("POST", "/agents", server.enrolment, json=mine).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.test", "localhost.evil.test", "127.0.0.1.evil.test:8765", "", "[::2]:80"]
)
def test_request_for_another_host_is_misdirected(server: Served, host: str) -> None:
    reply = server.ask("GET", "/jobs", headers={"Host": host})
    assert (reply.status_code, reply.json()["code"]) == (421, "wrong_host")


@pytest.mark.parametrize("host", ["localhost", "localhost:8765", "127.0.0.1:1", "[::1]:8765", "LOCALHOST"])
def test_request_for_this_machine_is_answered(server: Served, host: str) -> None:
    assert server.ask("GET", "/jobs", headers={"Host": host}).status_code == 200


def test_configured_host_is_answered(start: object) -> None:
    server = start(allowed_hosts=("advisor.example",))  # type: ignore[operator]
    assert server.ask("GET", "/jobs", headers={"Host": "advisor.example:443"}).status_code == 200
