"""Whose a job is: who may change it, who may read its secrets, and what is written of them anywhere."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from advisor.errors import Unavailable
from advisor.protocol.asked.jobs import JobSpec, JobState, Priority
from advisor.services.answers.advice import list_formats
from advisor.storage import Database
from tests.integration.server.served import FakeAgent, Served, start_gang
from tests.unit.services.scripted_tuning import make_spec

CANARY = "canary-7f3a9c-secret"
SPEC: dict[str, Any] = make_spec().model_dump(mode="json")
SECRET_SPEC = SPEC | {"workload": SPEC["workload"] | {"environment": {"WANDB_API_KEY": CANARY}}}
RUN = {"host": "h", "ranks": 1, "step": 1, "step_s": 0.1, "samples_per_s": 1.0}


def change_all(server: Served, job_id: str, token: str) -> dict[str, int]:
    """The status of every request that changes a job; cancelling comes last."""
    return {
        "run": server.ask("PUT", f"/jobs/{job_id}/runs/{'0' * 16}", token, json=RUN).status_code,
        "continue": server.ask(
            "POST", f"/jobs/{job_id}:extend", token, json={"more_seconds": 60}
        ).status_code,
        "archive": server.ask("POST", f"/jobs/{job_id}:archive", token).status_code,
        "unarchive": server.ask("POST", f"/jobs/{job_id}:unarchive", token).status_code,
        "delete": server.ask("DELETE", f"/jobs/{job_id}", token).status_code,
        "pause": server.ask("POST", f"/jobs/{job_id}:pause", token).status_code,
        "resume": server.ask("POST", f"/jobs/{job_id}:resume", token).status_code,
        "prioritise": server.ask(
            "POST", f"/jobs/{job_id}:prioritise", token, json={"priority": "low"}
        ).status_code,
        "repeat": server.ask("POST", f"/jobs/{job_id}/trials/0:repeat", token).status_code,
        "cancel": server.ask("POST", f"/jobs/{job_id}:cancel", token).status_code,
    }


MINE = {
    "run": 200,
    "continue": 409,
    "archive": 409,
    "unarchive": 409,
    "delete": 409,
    "pause": 200,
    "resume": 200,
    "prioritise": 200,
    "repeat": 404,
    "cancel": 200,
}
NOT_MINE = dict.fromkeys(MINE, 403)


def test_job_is_changed_by_its_owner_their_team_and_administrators_only(server: Served) -> None:
    ada = server.token("submitter", label="ada", team="vision")
    allowed = {
        "herself": ada,
        "her other token": server.token("submitter", label="ada"),
        "her team": server.token("submitter", label="bob", team="vision"),
        "an administrator": server.admin,
    }
    strangers = {
        "somebody": server.token("submitter", label="eve"),
        "another team": server.token("submitter", label="eve", team="speech"),
        "without a label": server.token("submitter", label=""),
        "a viewer of her name and team": server.token("viewer", label="ada", team="vision"),
    }
    for who, token in allowed.items():
        job = server.ask("POST", "/jobs", ada, json=SPEC).json()
        assert (job["owner"], job["team"]) == ("ada", "vision")
        for stranger, other in strangers.items():
            assert change_all(server, job["id"], other) == NOT_MINE, stranger
        assert server.job(job["id"]).state is JobState.QUEUED
        assert change_all(server, job["id"], token) == MINE, who


def test_refusal_names_the_owner_and_what_to_do(server: Served) -> None:
    job = server.ask("POST", "/jobs", server.token("submitter", label="ada"), json=SPEC).json()
    reply = server.ask("POST", f"/jobs/{job['id']}:cancel", server.token("submitter", label="eve"))
    assert (reply.status_code, reply.json()["code"]) == (403, "not_your_job")
    assert "belongs to ada" in reply.json()["detail"]
    assert "--team" in reply.json()["hint"]


def test_high_priority_is_an_administrators_to_give(server: Served) -> None:
    ada = server.token("submitter", label="ada")
    high = SPEC | {"priority": "high"}
    for query in ({}, {"validate_only": "true"}):
        reply = server.ask("POST", "/jobs", ada, json=high, params=query)
        assert (reply.status_code, reply.json()["code"]) == (403, "forbidden")
        assert "priority is high, which only an administrator gives" in reply.json()["detail"]
        assert "priority normal" in reply.json()["hint"]
    assert server.ask("POST", "/jobs", ada, json=SPEC | {"priority": "low"}).status_code == 201
    given = server.ask("POST", "/jobs", json=high).json()
    assert given["spec"]["priority"] == "high"
    clone = server.ask("POST", f"/jobs/{given['id']}:clone", ada).json()
    assert (clone["owner"], clone["spec"]["priority"]) == ("ada", "normal")
    raised = server.ask("POST", f"/jobs/{clone['id']}:prioritise", ada, json={"priority": "high"})
    assert (raised.status_code, raised.json()["code"]) == (403, "forbidden")
    assert server.job(clone["id"]).spec.priority is Priority.NORMAL
    raised = server.ask("POST", f"/jobs/{clone['id']}:prioritise", json={"priority": "high"})
    assert raised.json()["spec"]["priority"] == "high"
    lowered = server.ask("POST", f"/jobs/{clone['id']}:prioritise", ada, json={"priority": "normal"})
    assert lowered.json()["spec"]["priority"] == "normal"


def test_keys_of_two_tokens_with_one_label_are_apart(server: Served) -> None:
    tokens = [server.token("submitter", label="ci") for _ in range(2)]
    headers = {"Idempotency-Key": "nightly"}
    made = [server.ask("POST", "/jobs", token, json=SPEC, headers=headers).json()["id"] for token in tokens]
    assert made[0] != made[1]
    again = [server.ask("POST", "/jobs", token, json=SPEC, headers=headers).json()["id"] for token in tokens]
    assert again == made


def test_same_key_with_another_secret_is_another_request(server: Served) -> None:
    headers = {"Idempotency-Key": "nightly"}
    other = SPEC | {"workload": SPEC["workload"] | {"environment": {"WANDB_API_KEY": "another"}}}
    assert server.ask("POST", "/jobs", json=SECRET_SPEC, headers=headers).status_code == 201
    assert server.ask("POST", "/jobs", json=SECRET_SPEC, headers=headers).status_code == 201
    assert server.ask("POST", "/jobs", json=other, headers=headers).status_code == 409


def test_hidden_value_cannot_be_submitted_as_if_it_were_one(server: Served) -> None:
    job = server.ask("POST", "/jobs", json=SECRET_SPEC).json()
    assert job["spec"]["workload"]["environment"] == {"WANDB_API_KEY": "********"}
    reply = server.ask("POST", "/jobs", json=job["spec"])
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_job")
    assert "WANDB_API_KEY" in reply.json()["detail"]


def test_secret_reaches_the_agent_and_nobody_else(
    server: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    said: list[str] = []

    def hear(reply: Any) -> Any:
        said.append(f"{reply.request.method} {reply.url}: {reply.headers} {reply.text}")
        return reply

    readers = {role: server.token(role, label="ada") for role in ("viewer", "submitter", "admin")}
    hear(server.ask("POST", "/jobs", params={"validate_only": "true"}, json=SECRET_SPEC))
    job_id = hear(server.ask("POST", "/jobs", readers["submitter"], json=SECRET_SPEC)).json()["id"]
    broken = SECRET_SPEC | {
        "workload": SECRET_SPEC["workload"] | {"environment": {"A B": CANARY, "C": [CANARY]}}
    }
    for wrong in (broken, SECRET_SPEC | {"nodes": 0}, SECRET_SPEC | {"surprise": CANARY}):
        assert hear(server.ask("POST", "/jobs", json=wrong)).status_code == 422
    two = SECRET_SPEC | {"workload": SECRET_SPEC["workload"] | {"environment": {"A B": CANARY}}}
    assert hear(server.ask("POST", "/jobs", json=two)).json()["code"] == "invalid_job"

    agent = FakeAgent(server, "one")
    start_gang(agent)
    assert agent.place is not None
    assert agent.place.workload.environment == {"WANDB_API_KEY": CANARY}
    agent.hello()
    agent.measure_all()
    agent.end()
    server.await_state(job_id, JobState.FINISHED)

    paths = [
        path.removeprefix("/api/v1").replace("{job_id}", job_id)
        for path, operations in server.app.openapi()["paths"].items()
        if "get" in operations
    ]
    exports = [f"/jobs/{job_id}/strategy?format={known.name}" for known in list_formats()]
    for token in readers.values():
        for path in [*paths, *exports]:
            hear(server.ask("GET", path, token))
        hear(server.ask("POST", f"/jobs/{job_id}:cancel", token))
    pages = server.http
    pages.post("/login", data={"token": readers["viewer"]})
    for page in ("", f"/{job_id}", f"/{job_id}/trials/0", f"/{job_id}/log", f"/{job_id}/export"):
        assert hear(pages.get(f"/jobs{page}")).status_code == 200
    for known in list_formats():
        hear(pages.get(f"/jobs/{job_id}/export/file?format={known.name}"))

    assert len(said) > 60
    assert any("WANDB_API_KEY" in one for one in said)
    assert [one[:200] for one in said if CANARY in one] == []
    assert CANARY not in caplog.text
    assert CANARY not in repr(server.job(job_id))
    # Only the database has it, and only its owner may read that.
    holding = [
        path for path in tmp_path.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()
    ]
    assert {path.name.partition("-")[0] for path in holding} == {"advisor.db"}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("advisor.db*")} == {0o600}


@pytest.mark.parametrize("existing", [False, True])
def test_database_file_is_its_owners_alone(tmp_path: Path, existing: bool) -> None:
    path = tmp_path / "elsewhere.db"
    if existing:
        path.touch(0o644)
    before = os.umask(0o022)
    try:
        database = Database(f"sqlite:///{path}", lambda: "unused")
        database.migrate()
        assert {found.stat().st_mode & 0o777 for found in tmp_path.glob("elsewhere.db*")} == {0o600}
        database.close()
    finally:
        os.umask(before)


def test_failed_statement_tells_no_parameters(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'advisor.db'}", lambda: "unused")
    database.migrate()
    with pytest.raises(Unavailable) as failed, database.begin() as work:
        work.connection.exec_driver_sql("INSERT INTO missing VALUES (?)", (CANARY,))
    assert "no such table" in str(failed.value.__cause__)
    assert CANARY not in str(failed.value.__cause__)
    database.close()


@pytest.mark.parametrize(
    "broken", [{"environment": [CANARY]}, {"environment": {"A": [CANARY]}}, {"x": CANARY}]
)
def test_document_that_cannot_be_read_is_not_repeated_in_the_error(broken: dict[str, object]) -> None:
    spec = SPEC | {"workload": SPEC["workload"] | broken}
    with pytest.raises(ValidationError) as failed:
        JobSpec.model_validate(spec)
    assert CANARY not in str(failed.value)
