"""Pausing, archiving, cloning and deleting jobs over HTTP, each also for the version that somebody saw."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select

from advisor.protocol.asked.jobs import JobState
from advisor.protocol.measured.trials import HistoryPage
from advisor.storage.tables import Base
from tests.integration.server.served import FakeAgent, Served, start_gang
from tests.unit.services.scripted_tuning import make_spec


def act(server: Served, job_id: str, verb: str, token: str | None = None, **request: Any) -> Any:
    return server.ask("POST", f"/jobs/{job_id}:{verb}", token, **request)


def listed(server: Served, **asked: Any) -> list[str]:
    return [job["id"] for job in server.ask("GET", "/jobs", params=asked).json()["items"]]


def finish(server: Served) -> str:
    """A job that was measured to its end, with everything that a job can have."""
    job_id = server.submit(labels={"project": "bert"}).id
    agent = FakeAgent(server, "one")
    start_gang(agent)
    agent.beat(log="step 1\n")
    agent.hello()
    race = agent.next()["race"]
    agent.report(race)
    agent.report(race, step_s=0.3)
    agent.measure_all()
    agent.end()
    server.await_state(job_id, JobState.FINISHED)
    run = {"host": "h", "ranks": 1, "step": 1, "step_s": 0.1, "samples_per_s": 1.0}
    assert server.ask("PUT", f"/jobs/{job_id}/runs/{'0' * 16}", json=run).status_code == 200
    return job_id


def test_paused_job_waits_and_is_resumed(server: Served) -> None:
    job_id = server.submit().id
    paused = act(server, job_id, "pause")
    assert paused.json()["state"] == "paused"
    assert paused.headers["etag"] == server.ask("GET", f"/jobs/{job_id}").headers["etag"]
    assert FakeAgent(server, "one").poll() is None
    assert listed(server, state="paused") == [job_id]
    assert act(server, job_id, "resume").json()["state"] == "queued"


def test_prioritised_job_says_who_changed_what(server: Served) -> None:
    ada = server.token("submitter", label="ada")
    job = server.ask("POST", "/jobs", ada, json=make_spec(labels={"a": "b"}).model_dump(mode="json")).json()
    low = act(server, job["id"], "prioritise", ada, json={"priority": "low"})
    assert low.json()["spec"] == job["spec"] | {"priority": "low"}
    found = server.ask("GET", f"/jobs/{job['id']}")
    # The scheduler may have looked at the job in between, and said what it waits for.
    assert (low.headers["etag"] == found.headers["etag"]) is (
        low.json()["version"] == found.json()["version"]
    )
    again = act(server, job["id"], "prioritise", ada, json={"priority": "low"})
    assert again.json()["spec"] == low.json()["spec"]
    events = server.ask("GET", f"/jobs/{job['id']}/events").json()["items"]
    told = "ada gave the job priority low; it had normal."
    assert [event["sentence"] for event in events].count(told) == 1
    act(server, job["id"], "cancel", ada)
    ended = act(server, job["id"], "prioritise", ada, json={"priority": "normal"})
    assert (ended.status_code, ended.json()["code"]) == (409, "job_is_final")
    assert "cancelled already" in ended.json()["detail"]


def test_archived_job_is_listed_where_it_is_asked_for(server: Served) -> None:
    job_id = finish(server)
    assert act(server, job_id, "archive").json()["archived_at"]
    assert act(server, job_id, "archive").status_code == 200
    assert (listed(server), listed(server, archived=True)) == ([], [job_id])
    assert act(server, job_id, "unarchive").json()["archived_at"] is None
    assert listed(server) == [job_id]
    act(server, job_id, "archive")
    assert act(server, job_id, "extend", json={"more_seconds": 60}).json()["archived_at"] is None
    assert listed(server) == [job_id]


def test_what_was_measured_is_read_page_by_page(server: Served) -> None:
    job_id = finish(server)
    history = server.history(job_id).model_dump(mode="json")
    for what in ("trials", "blocks", "sessions"):
        found, cursor = [], None
        while True:
            params = {"limit": 1} | ({"cursor": cursor} if cursor else {})
            page = server.ask("GET", f"/jobs/{job_id}/{what}", params=params).json()
            found += page["items"]
            if (cursor := page["next_cursor"]) is None:
                break
        assert found == history[what]
        for wrong in ({"limit": 0}, {"limit": 1001}, {"cursor": "x"}):
            assert server.ask("GET", f"/jobs/{job_id}/{what}", params=wrong).status_code == 422


def test_history_in_parts_is_the_whole_one(server: Served) -> None:
    job_id = finish(server)
    whole = server.history(job_id)
    assert len(whole.blocks) > 1
    pages: list[HistoryPage] = []
    asked: dict[str, Any] = {"limit": 1}
    while not pages or pages[-1].next_cursor:
        if pages:
            asked["cursor"] = pages[-1].next_cursor
        reply = server.ask("GET", f"/jobs/{job_id}/history", params=asked)
        pages.append(HistoryPage.model_validate(reply.json()))
        assert max(map(len, (pages[-1].trials, pages[-1].blocks, pages[-1].sessions))) <= 1
    assert len(pages) == max(map(len, (whole.trials, whole.blocks, whole.sessions)))
    for part in ("trials", "blocks", "sessions", "earlier"):
        assert [each for page in pages for each in getattr(page, part)] == list(getattr(whole, part))
    for wrong in ("x", str(asked["cursor"])[:-3]):
        assert server.ask("GET", f"/jobs/{job_id}/history", params={"cursor": wrong}).status_code == 422


def list_rows(server: Served) -> Iterator[tuple[str, str]]:
    """Every row of every table, as text, but those that no job owns."""
    with server.app.state.context.database.read() as work:
        for table in Base.metadata.sorted_tables:
            if table.name not in {"agents", "tokens", "pulse"}:
                for row in work.connection.execute(select(table)):
                    yield table.name, str(row)


def test_deleted_job_leaves_nothing_behind_and_others_stay(server: Served) -> None:
    other = server.submit(name="other", labels={"kept": "yes"}).id
    server.ask("POST", f"/jobs/{other}:cancel")
    before = set(list_rows(server))
    job_id = finish(server)
    tables = {name for name, _ in set(list_rows(server)) - before}
    assert tables >= {"sessions", "members", "blocks", "results", "quarantine", "advice", "runs", "labels"}
    assert server.ask("DELETE", f"/jobs/{job_id}").status_code == 204
    assert set(list_rows(server)) == before
    assert server.ask("GET", f"/jobs/{job_id}").status_code == 404
    assert server.ask("DELETE", f"/jobs/{job_id}").status_code == 404


@pytest.mark.parametrize("verb", ["archive", "unarchive", "delete"])
def test_job_that_has_not_ended_is_neither_archived_nor_deleted(server: Served, verb: str) -> None:
    job_id = server.submit().id
    reply = server.ask("DELETE", f"/jobs/{job_id}") if verb == "delete" else act(server, job_id, verb)
    assert (reply.status_code, reply.json()["code"]) == (409, "job_is_live")
    assert "advisor cancel" in reply.json()["hint"]


def test_clone_is_a_new_job_of_who_asks(server: Served) -> None:
    ada, eve = server.token("submitter", label="ada"), server.token("submitter", label="eve")
    spec = make_spec(name="mine", labels={"project": "bert"}).model_dump(mode="json")
    job = server.ask("POST", "/jobs", ada, json=spec).json()
    key = {"Idempotency-Key": "once more"}
    replies = [act(server, job["id"], "clone", eve, headers=key) for _ in range(2)]
    clone = replies[0].json()
    assert [reply.status_code for reply in replies] == [201, 201]
    assert replies[0].headers["location"] == f"/api/v1/jobs/{clone['id']}"
    assert replies[1].json()["id"] == clone["id"] != job["id"]
    assert (clone["owner"], clone["state"], clone["spec"]) == ("eve", "queued", job["spec"])
    assert listed(server, label="project=bert", owner="eve") == [clone["id"]]


def test_clone_does_not_use_somebody_elses_secrets(server: Served) -> None:
    ada, eve = server.token("submitter", label="ada"), server.token("submitter", label="eve")
    spec = make_spec().model_dump(mode="json")
    spec["workload"]["environment"] = {"WANDB_API_KEY": "canary"}
    job_id = server.ask("POST", "/jobs", ada, json=spec).json()["id"]
    refused = act(server, job_id, "clone", eve)
    assert (refused.status_code, refused.json()["code"]) == (403, "not_your_job")
    clone = act(server, job_id, "clone", ada).json()["id"]
    with server.app.state.context.database.read() as work:
        assert work.jobs.get(clone).spec.workload.environment == {"WANDB_API_KEY": "canary"}


@pytest.mark.parametrize(
    "verb", ["pause", "resume", "prioritise", "cancel", "archive", "unarchive", "extend", "delete"]
)
def test_change_of_another_version_is_refused_with_the_present_one(server: Served, verb: str) -> None:
    job_id = server.submit().id
    seen = server.ask("GET", f"/jobs/{job_id}").headers["etag"]
    act(server, job_id, "pause")
    now = server.ask("GET", f"/jobs/{job_id}").headers["etag"]
    assert now != seen
    method, path = ("DELETE", "") if verb == "delete" else ("POST", f":{verb}")
    documents = {"extend": {"more_seconds": 60}, "prioritise": {"priority": "low"}}
    body = {"json": documents[verb]} if verb in documents else {}

    def change(if_match: str) -> Any:
        return server.ask(method, f"/jobs/{job_id}{path}", headers={"If-Match": if_match}, **body)

    refused = change(seen)
    assert (refused.status_code, refused.json()["code"]) == (412, "version_mismatch")
    assert refused.headers["etag"] == now
    assert server.ask("GET", f"/jobs/{job_id}").headers["etag"] == now
    assert change(now).status_code != 412
    assert change("*").status_code != 412
