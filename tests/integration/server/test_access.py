"""Tokens and hosts: what is no token, what guessing meets, how streams end, and which names the server answers for."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from advisor.api.access import AGENTS
from advisor.protocol.measured.messages import PROTOCOL_MAJOR
from advisor.serving import configure_server
from tests.integration.server.served import FakeAgent, Served, wait_for


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
    assert codes[:30] == [401] * 30
    assert 429 in codes
    assert server.ask("GET", "/jobs").status_code == 200


def test_token_that_asks_too_fast_is_told_to_wait_and_keeps_nobody_else_out(
    start: Callable[..., Served],
) -> None:
    server = start(most_requests_per_s=0.001, most_requests_at_once=5)
    agent = FakeAgent(server, "one")
    viewer = server.token("viewer")
    replies = [server.ask("GET", "/jobs", viewer) for _ in range(6)]
    assert [reply.status_code for reply in replies] == [200] * 5 + [429]
    refused = replies[-1]
    assert refused.json()["code"] == "too_many_requests"
    # A thousand seconds for the next request, less what the five before it took on a busy machine.
    assert 900 < int(refused.headers["retry-after"]) <= 1000
    assert server.ask("GET", "/jobs").status_code == 200
    assert server.ask("POST", f"/agents/{agent.id}/poll", agent.token).status_code == 200
    for number in range(6):
        # One token registers a whole cluster.
        assert server.register(f"node-{number}", server.enrolment).status_code == 200


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
    codes = {ask_through(server, "127.0.0.1", "10.0.0.1", "/api/v1/jobs", headers=WRONG) for _ in range(40)}
    assert codes == {401, 429}


def test_guesses_from_a_plain_network_are_counted_by_the_real_peer(start: object) -> None:
    server: Served = start(plain_networks=("10.9.0.0/16",))  # type: ignore[operator]
    forwarded = [f"10.0.{number}.1" for number in range(40)]
    codes = {ask_through(server, "10.9.1.1", peer, "/api/v1/jobs", headers=WRONG) for peer in forwarded}
    assert codes == {401, 429}


def test_guesses_at_the_sign_in_page_are_counted_too(server: Served) -> None:
    data = {"token": "adv_admin_id_guess"}
    codes = {ask_through(server, "127.0.0.1", "10.0.0.1", "/login", data=data) for _ in range(40)}
    assert codes == {401, 429}
    assert ask_through(server, "127.0.0.2", "10.0.0.1", "/login", data=data) == 401
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


def test_token_that_holds_its_streams_open_gets_no_more_and_others_do(start: Callable[..., Served]) -> None:
    server = start(most_streams=2, stream_s=3600, tick_s=3600)
    job, viewer = server.submit(), server.token("viewer")
    path = f"/jobs/{job.id}/events/stream"
    with ThreadPoolExecutor(3) as pool:
        held = [pool.submit(server.ask, "GET", path, viewer) for _ in range(2)]
        streams = server.app.state.streams
        wait_for(lambda: sum(streams._open.values()) == 2 or None, "two streams are open")
        refused = server.ask("GET", path, viewer)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "10")
        assert refused.json()["code"] == "too_many_streams"
        assert "holds 2 streams" in refused.json()["detail"]
        assert "a token of its own" in refused.json()["hint"]
        assert server.ask("GET", f"/jobs/{job.id}", viewer).status_code == 200
        # A page's stream is one of the token's too.
        assert server.http.post("/login", data={"token": viewer}).status_code == 200
        assert server.http.get(f"/jobs/{job.id}/live").status_code == 429
        another = pool.submit(server.ask, "GET", path)
        wait_for(lambda: sum(streams._open.values()) == 3 or None, "another token's stream is open")
        server.ask("POST", f"/jobs/{job.id}:cancel")
        assert [one.result(timeout=30).status_code for one in (*held, another)] == [200] * 3
    assert server.ask("GET", path, viewer).status_code == 200
    assert "ended" in server.http.get(f"/jobs/{job.id}/live").text
    assert not streams._open


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
    reply = server.ask(
        "POST", "/agents", agent.token, json={"name": "two", "node": node, "secret": "its own"}
    )
    assert reply.status_code == 403
    assert AGENTS


def test_agent_of_another_protocol_is_told_to_upgrade(server: Served) -> None:
    node = {"hostname": "x", "cpu_count": 1, "memory_bytes": 1}
    body = {
        "name": "two",
        "node": node,
        "secret": "its own",
        "protocol_major": PROTOCOL_MAJOR + 1,
        "a_newer_field": True,
    }
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


def test_request_that_names_two_hosts_is_misdirected(server: Served) -> None:
    headers = [
        (b"Host", b"localhost"),
        (b"Host", b"evil.test"),
        (b"Authorization", b"Bearer " + server.admin.encode()),
    ]
    reply = server.http.get("/api/v1/jobs", headers=headers)  # type: ignore[arg-type]
    assert (reply.status_code, reply.json()["code"]) == (421, "wrong_host")


@pytest.mark.parametrize("host", ["localhost", "localhost:8765", "127.0.0.1:1", "[::1]:8765", "LOCALHOST"])
def test_request_for_this_machine_is_answered(server: Served, host: str) -> None:
    assert server.ask("GET", "/jobs", headers={"Host": host}).status_code == 200


def test_configured_host_is_answered(start: object) -> None:
    server = start(allowed_hosts=("advisor.example",))  # type: ignore[operator]
    assert server.ask("GET", "/jobs", headers={"Host": "advisor.example:443"}).status_code == 200
