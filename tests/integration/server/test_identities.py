"""Whose a name is, and how long a token lasts: agents that register, tokens that end, agents that are turned out."""

from typing import Any

import pytest

from tests.integration.server.served import FakeAgent, Served, start_gang
from tests.unit.services.scripted_tuning import make_node


def refused(reply: Any) -> tuple[int, str]:
    return reply.status_code, reply.json()["code"]


def test_agent_at_work_is_not_taken_over_with_the_enrolment_token(server: Served) -> None:
    job = server.submit()
    agent = FakeAgent(server, "one", secret="its own")
    start_gang(agent)
    reply = server.register("one", server.enrolment, "another")
    assert refused(reply) == (409, "agent_name_taken")
    assert "--name" in reply.json()["hint"]
    assert agent.beat()["state"] == "running"
    assert [session.outcome for session in server.history(job.id).sessions] == [None]


def test_agent_that_starts_again_needs_no_fresh_token(server: Served) -> None:
    token = server.token("agent", uses=1)
    first = server.register("one", token, "its own").json()
    assert refused(server.register("two", token, "another")) == (401, "unauthenticated")
    again = server.register("one", token, "its own")
    assert (again.status_code, again.json()["agent_id"]) == (200, first["agent_id"])
    assert server.ask("POST", f"/agents/{first['agent_id']}/poll", first["token"]).status_code == 401
    server.ask("DELETE", f"/tokens/{token.split('_')[2]}")
    assert server.register("one", token, "its own").status_code == 200
    assert refused(server.register("one", token, "another")) == (409, "agent_name_taken")
    assert refused(server.register("three", token, "a third")) == (401, "unauthenticated")


def test_own_token_proves_an_agent_whatever_its_secret_until_it_registers_again(server: Served) -> None:
    agent = FakeAgent(server, "one", secret="its own")
    assert server.register("one", agent.token, "another").status_code == 200
    assert refused(server.register("one", server.enrolment, "its own")) == (409, "agent_name_taken")
    assert server.register("one", server.enrolment, "another").status_code == 200
    assert refused(server.register("one", agent.token, "its own")) == (409, "agent_name_taken")


def test_revoked_agent_stays_out_until_an_administrator_readmits_it(server: Served) -> None:
    agent = FakeAgent(server, "one", secret="its own")
    assert server.ask("DELETE", f"/tokens/{agent.token.split('_')[2]}").status_code == 204
    assert server.ask("POST", f"/agents/{agent.id}/poll", agent.token).status_code == 401
    for secret in ("its own", "another"):
        assert refused(server.register("one", server.enrolment, secret)) == (403, "agent_turned_out")
    assert server.ask("GET", "/agents").json()["items"][0]["state"] == "revoked"
    server.submit()
    assert server.ask("POST", f"/agents/{agent.id}:readmit", server.token("submitter")).status_code == 403
    assert server.ask("POST", f"/agents/{agent.id}:readmit").status_code == 204
    again = FakeAgent(server, "one", secret="another")
    assert again.id == agent.id
    assert again.take_place().node_rank == 0
    assert refused(server.ask("POST", "/agents/none:readmit")) == (404, "agent_not_found")


def test_rotated_token_keeps_its_owner_and_ends_after_its_grace(server: Served) -> None:
    old = server.token("submitter", team="vision")
    path = f"/tokens/{old.split('_')[2]}:rotate"
    kept = server.ask("POST", path, json={}).json()
    assert (kept["role"], kept["label"], kept["team"]) == ("submitter", "a submitter", "vision")
    assert [server.ask("GET", "/jobs", token).status_code for token in (old, kept["token"])] == [200, 200]
    fresh = server.ask("POST", path, json={"grace_s": 0, "expires_s": 3600}).json()
    assert fresh["expires_at"] is not None
    reply = server.ask("GET", "/jobs", old)
    assert refused(reply) == (401, "unauthenticated")
    assert "expired" in reply.json()["detail"]
    assert server.ask("GET", "/jobs", fresh["token"]).status_code == 200
    assert refused(server.ask("POST", path, json={})) == (422, "invalid_request")
    agent = FakeAgent(server, "one")
    own = f"/tokens/{agent.token.split('_')[2]}:rotate"
    assert refused(server.ask("POST", own, json={})) == (422, "invalid_request")


@pytest.mark.parametrize(
    "wanted",
    [
        {"role": "viewer", "uses": 1},
        {"role": "agent", "uses": 0},
        {"role": "viewer", "expires_s": 0},
        {"role": "viewer", "expires_s": 1e12},
    ],
)
def test_token_that_makes_no_sense_is_refused(server: Served, wanted: dict[str, object]) -> None:
    assert refused(server.ask("POST", "/tokens", json=wanted)) == (422, "invalid_request")


def test_rotated_token_of_few_uses_leaves_no_more_of_them(server: Served) -> None:
    old = server.ask("POST", "/tokens", json={"role": "agent", "uses": 1}).json()["token"]
    new = server.ask("POST", f"/tokens/{old.split('_')[2]}:rotate", json={}).json()["token"]
    document = {"name": "one", "node": make_node("one").model_dump(mode="json"), "secret": "its own"}
    assert refused(server.ask("POST", "/agents", old, json=document)) == (401, "unauthenticated")
    assert server.ask("POST", "/agents", new, json=document).is_success
