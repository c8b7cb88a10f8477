"""Signed jobs on their way: the server keeps what was signed to itself and to the agents, and learns who refuses it."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from advisor.cli.tuning.sign import sign_job
from advisor.protocol.asked.jobs import JobSpec, JobState
from advisor.protocol.training.workload import HIDDEN, WITH_SECRETS, Workload
from tests.integration.server.served import FakeAgent, Served, wait_for

CANARY = "hush-canary"


@pytest.fixture
def signed(tmp_path: Path) -> dict[str, Any]:
    """A signed job's document as it is submitted; its environment holds a secret."""
    key = tmp_path / "ada"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    workload = Workload(command=("torchrun", "train.py"), working_dir="/srv", environment={"KEY": CANARY})
    spec = sign_job(JobSpec(workload=workload, seed=1), key, datetime.now(UTC), 3600.0)
    return spec.model_dump(mode="json", context=WITH_SECRETS)


def test_agent_gets_what_was_signed_and_nobody_else_reads_it(server: Served, signed: dict[str, Any]) -> None:
    job = server.ask("POST", "/jobs", json=signed).json()
    assert job["spec"]["signed"]["statement"] == HIDDEN
    for path in (f"/jobs/{job['id']}", "/jobs", f"/jobs/{job['id']}/history", f"/jobs/{job['id']}/events"):
        assert CANARY not in server.ask("GET", path).text
    assert CANARY not in server.ask("POST", "/jobs?validate_only=true", json=signed).text
    place = FakeAgent(server, "one").take_place()
    assert place.signed is not None
    assert place.signed.statement == signed["signed"]["statement"]
    assert place.signed.signature == signed["signed"]["signature"]


@pytest.mark.parametrize(
    ("field", "value"), [("seed", 7), ("freeze", ["num_threads"]), ("nodes", 2), ("allow", "convergence")]
)
def test_job_that_differs_from_what_was_signed_is_refused(
    server: Served, signed: dict[str, Any], field: str, value: object
) -> None:
    reply = server.ask("POST", "/jobs", json=signed | {field: value})
    assert reply.status_code == 422
    assert "sign it as it is now" in reply.json()["detail"]


@pytest.mark.parametrize("statement", [HIDDEN, "{}", '{"nonce": "x"}', "[1]"])
def test_statement_that_is_none_is_refused(server: Served, signed: dict[str, Any], statement: str) -> None:
    changed = signed | {"signed": signed["signed"] | {"statement": statement}}
    reply = server.ask("POST", "/jobs", json=changed)
    assert reply.status_code == 422
    assert "signed" in reply.json()["detail"]


def test_clone_is_unsigned_because_a_signature_is_for_one_job(server: Served, signed: dict[str, Any]) -> None:
    job = server.ask("POST", "/jobs", json=signed).json()
    cloned = server.ask("POST", f"/jobs/{job['id']}:clone").json()
    assert cloned["spec"]["signed"] is None


def test_unsigned_job_is_not_given_to_an_agent_that_says_it_starts_signed_jobs_only(
    server: Served, signed: dict[str, Any]
) -> None:
    strict = FakeAgent(server, "one", signed_only=True)
    unsigned = server.submit()
    why = "one starts signed jobs only, and this one is not: submit it signed, `advisor tune --sign KEY`."
    wait_for(lambda: why in server.job(unsigned.id).state_reason or None, "it says what it waits for")
    proper = server.ask("POST", "/jobs", json=signed).json()
    assert strict.take_place().job_id == proper["id"]
    assert server.job(unsigned.id).state is JobState.QUEUED


def test_job_that_an_agent_of_before_wants_signed_fails_with_its_sentence(server: Served) -> None:
    job = server.submit()
    agent = FakeAgent(server, "one")
    agent.take_place()
    why = "one: This agent starts signed jobs only (--require-signed), and the job carries no signature."
    reply = agent.say("end", outcome="crashed", reason=why, trouble={"code": "not_signed", "sentence": why})
    assert reply.status_code == 204
    failed = server.await_state(job.id, JobState.FAILED)
    assert why in failed.state_reason
