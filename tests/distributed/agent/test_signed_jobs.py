"""A real agent that wants jobs signed starts what their owner signed, whatever the server hands out."""

import subprocess
from datetime import UTC, datetime

import pytest

from advisor.cli.tuning.sign import sign_job
from advisor.protocol.asked.jobs import JobSpec

pytestmark = pytest.mark.distributed

SCRIPT = "import sys; print('I am', *sys.argv[1:], flush=True)"


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "ada"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


def test_agent_starts_what_was_signed_and_nothing_else(
    agents, server, session_id, make_workload, wait_for, key
):
    agents.start_command("a0", "--require-signed", str(key.with_suffix(".pub")))
    honest, evil = make_workload(SCRIPT, "honest"), make_workload(SCRIPT, "evil")
    refused = server.assign(session_id, evil, ("a0",))
    wait_for(lambda: refused.ends)
    assert refused.ends[0]["trouble"]["code"] == "not_signed"
    spec = sign_job(JobSpec(workload=honest), key, datetime.now(UTC), 3600.0)
    started = server.assign(f"{session_id}b", evil, ("a0",), signed=spec.signed)
    wait_for(lambda: started.ends)
    said = started.log + started.ends[0]["log_tail"]
    assert "I am honest" in said
    assert "I am evil" not in said
