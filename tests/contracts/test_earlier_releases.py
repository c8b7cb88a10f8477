"""What earlier releases said and kept, recorded from them (`releases/record.py`), is understood by this one."""

import gzip
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from advisor.exporters.formats import list_suitable
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.measured.messages import AgentRegistered, BeatReply, NextReply, PollReply
from advisor.protocol.reading import read_document
from advisor.protocol.views import AgentPage, JobPage, RaceAccepted
from advisor.storage.database import upgrade
from advisor.tuning.asked import PlannerTuning
from tests.contracts.kept_rows import RECORDED, connect, insert_rows, read_kept, read_script
from tests.integration.server.served import Served

ANSWERS: dict[str, Any] = {
    "POST agents": AgentRegistered,
    "POST agents/*/poll": PollReply,
    "POST sessions/*/beat": BeatReply,
    "POST sessions/*/next": NextReply,
    "POST sessions/*/races/*": RaceAccepted,
    "POST jobs": Job,
    "GET jobs": JobPage,
    "GET agents": AgentPage,
    "GET jobs/*/advice": Advice,
}
"""What the programs of a release read of a server's answers."""


@dataclass(frozen=True)
class Earlier:
    """A release's words, and this release's server over what it kept."""

    said: list[dict[str, Any]]
    server: Served
    job: Job
    """The one that it was measuring when it was killed."""

    def list_said(self, kind: str) -> list[dict[str, Any]]:
        """The exchanges of one kind."""
        return [one for one in self.said if find_kind(one) == kind]


def find_kind(said: dict[str, Any]) -> str:
    """The method and the path of an exchange, without what is named in it."""
    parts = said["path"].removeprefix("/api/v1/").split("/")
    return f"{said['method']} {'/'.join('*' if place % 2 else part for place, part in enumerate(parts))}"


def read_said(folder: Path) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = json.loads(gzip.decompress((folder / "wire.json.gz").read_bytes()))
    return said


@pytest.fixture(params=RECORDED, ids=lambda folder: folder.name)
def earlier(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Iterator[Earlier]:
    kept = read_kept(request.param)
    if database_url.startswith("sqlite"):
        with sqlite3.connect(tmp_path / "advisor.db") as database:
            database.executescript(read_script(request.param))
    else:
        # It would have kept the same rows there, in tables of its revision.
        with connect(database_url) as connection:
            upgrade(connection, kept.revision)
            insert_rows(connection, kept.rows)
    # Budgets are of time too: the server is replaced right after it was killed.
    away = datetime.now(UTC) - max(agent["last_seen_at"] for agent in kept.rows["agents"])
    server = Served(
        tmp_path, PlannerTuning(), clock=lambda: datetime.now(UTC) - away, database_url=database_url
    )
    running = [
        job
        for job in read_document(JobPage, server.ask("GET", "/jobs").content).items
        if not job.state.is_final
    ]
    assert [job.state for job in running] == [JobState.RUNNING]
    yield Earlier(read_said(request.param), server, running[0])
    server.stop()


def test_agent_goes_on_where_it_was_when_its_server_is_replaced(earlier: Earlier) -> None:
    server = earlier.server
    (session,) = [one for one in server.history(earlier.job.id).sessions if not one.state.is_final]
    (registered,) = earlier.list_said("POST agents")
    token = registered["reply"]["token"]
    blocks = server.history(earlier.job.id).blocks
    before = [(block.id, block.state, block.result) for block in blocks]
    its_own = [one for one in earlier.said if session.id in one["path"]]
    assert {"beat", "hello", "next"} <= {one["path"].split("/")[-1] for one in its_own}
    for one in its_own:
        reply = server.ask(one["method"], one["path"].removeprefix("/api/v1"), token, json=one["body"])
        assert reply.status_code == one["status"], (one["path"], reply.text)
    # Its telemetry came again, and counts for when it came.
    after = server.history(earlier.job.id).blocks[: len(before)]
    assert [(block.id, block.state, block.result) for block in after] == before
    path = f"/sessions/{session.id}/next"
    asked = server.ask("POST", path, token, json={"generation": session.generation}).json()
    assert asked["race"] is not None, asked["end_because"]


def test_every_message_is_understood_whatever_becomes_of_it(earlier: Earlier) -> None:
    server = earlier.server
    (registered,) = earlier.list_said("POST agents")
    again = server.ask("POST", "/agents", server.enrolment, json=registered["body"])
    assert again.json()["agent_id"] == registered["reply"]["agent_id"], again.text
    agent, tried = again.json()["token"], 0
    for one in earlier.said:
        if one is registered:
            continue
        is_agents = one["path"].startswith("/api/v1/sessions/") or one["path"].endswith("/poll")
        token = agent if is_agents else None
        path = one["path"].removeprefix("/api/v1") + (f"?{one['query']}" if one["query"] else "")
        reply = server.ask(one["method"], path, token, json=one["body"])
        # The agent began anew above, which ends what it had.
        is_late = reply.status_code == 409 and reply.json()["code"] == "stale_session"
        assert is_late or reply.status_code == one["status"], (one["method"], path, reply.text[:300])
        tried += one["body"] is not None
    assert tried > 20


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: folder.name)
def test_answers_of_its_server_are_understood(folder: Path) -> None:
    read = set()
    for one in read_said(folder):
        if (expected := ANSWERS.get(find_kind(one))) and one["status"] < 300:
            read_document(expected, json.dumps(one["reply"]))
            read.add(find_kind(one))
    assert read == ANSWERS.keys()


def test_what_it_found_is_shown_and_exported_as_it_was(earlier: Earlier) -> None:
    server = earlier.server
    told = earlier.list_said("GET jobs/*/advice")[-1]
    job_id = told["path"].split("/")[-2]
    advice = server.ask("GET", f"/jobs/{job_id}/advice").json()
    assert advice["headline"] == told["reply"]["headline"]
    assert told["reply"]["gain"].items() <= advice["gain"].items()
    for info in list_suitable(server.job(job_id)):
        reply = server.ask("GET", f"/jobs/{job_id}/strategy?format={info.name}")
        assert reply.status_code == 200, (info.name, reply.text[:300])

    server.http.post("/login", data={"token": server.admin})
    for job in (job_id, earlier.job.id):
        files = ("/export/bundle", "/export/report") if job == job_id else ()
        for page in ("", "/trials", "/trials/0", "/explore", "/what-if", "/log", "/export", *files):
            shown = server.http.get(f"/jobs/{job}{page}")
            assert shown.status_code == 200, (page, shown.text[:300])
