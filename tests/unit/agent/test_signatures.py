"""What an agent starts whose operator wants jobs signed; signed and checked by the real OpenSSH."""

import json
import os
import subprocess
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from advisor.cli.tuning.sign import sign_job
from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.measured.messages import Assignment
from advisor.protocol.training.workload import WITH_SECRETS
from agent.client import ServerClient
from agent.errors import BadConfiguration, NotSigned
from agent.loop import Agent
from agent.settings import AgentSettings
from agent.trust.signatures import TrustedSigners
from tests.no_gpus import NoGpus

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WEEK_S = 7 * 86_400.0
WORKLOAD = {"command": ["torchrun", "train.py"], "working_dir": "/srv", "environment": {"KEY": "hush"}}


def make_key(folder, name, kind="ed25519"):
    path = folder / name
    words = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", f"{name}@example.com", "-f", str(path)]
    subprocess.run(words, check=True)
    return path


@pytest.fixture
def key(tmp_path):
    """A key that the agent's operator trusts."""
    return make_key(tmp_path, "ada")


@pytest.fixture
def trust(tmp_path):
    """Makes the agent's side: it trusts the keys whose lines it is given."""

    def make(*lines, at=NOW):
        path = tmp_path / "trusted"
        path.write_text("# whom we trust\n\n" + "\n".join(lines) + "\n")
        return TrustedSigners(path, tmp_path, clock=lambda: at.timestamp())

    return make


def public(key):
    return key.with_suffix(".pub").read_text().strip()


def sign(key, seconds=WEEK_S, **fields):
    return sign_job(JobSpec.model_validate({"workload": WORKLOAD, **fields}), key, NOW, seconds)


def assign(spec, job_id="j1", **changed):
    """The assignment as it comes out of a server's answer."""
    made = Assignment(
        session_id="s1",
        generation=1,
        job_id=job_id,
        node_rank=0,
        nnodes=spec.nodes,
        workload=spec.workload,
        signed=spec.signed,
    ).model_copy(update=changed)
    return Assignment.model_validate_json(made.model_dump_json(context=WITH_SECRETS))


@pytest.mark.parametrize(
    "line", ["{key}", "ada@example.com {key}", 'ada,bob namespaces="fleet-advisor-job" {key}']
)
def test_job_signed_by_a_trusted_key_is_started_as_it_was_signed(key, trust, line):
    signers = trust(line.format(key=public(key)))
    proven, job = signers.prove(assign(sign(key, hang_timeout_s=77)))
    assert proven.workload == JobSpec.model_validate({"workload": WORKLOAD}).workload
    assert proven.hang_timeout_s == 77
    assert job.workload.environment == {"KEY": "hush"}
    assert signers.prove(assign(sign(key, hang_timeout_s=77), job_id="j2"))


def test_job_without_a_signature_is_refused_with_what_to_do(key, trust):
    unsigned = sign(key).model_copy(update={"signed": None})
    with pytest.raises(NotSigned, match=r"signed jobs only.*--sign"):
        trust(public(key)).prove(assign(unsigned))


def test_signature_of_another_key_is_refused(key, trust, tmp_path):
    with pytest.raises(NotSigned, match="no key that this agent trusts"):
        trust(public(key)).prove(assign(sign(make_key(tmp_path, "eve"))))


@pytest.mark.parametrize(
    ("before", "after"),
    [("train.py", "steal.py"), ("hush", "loud"), ("/srv", "/etc"), ("2026-01-08", "2036-01-08")],
)
def test_statement_of_which_a_character_was_changed_is_refused(key, trust, before, after):
    spec = sign(key)
    assert before in spec.signed.statement
    forged = spec.signed.model_copy(update={"statement": spec.signed.statement.replace(before, after)})
    with pytest.raises(NotSigned, match="not of this very job"):
        trust(public(key)).prove(assign(spec, signed=forged))


def test_server_that_hands_out_another_workload_beside_the_signature_changes_nothing(key, trust):
    spec = sign(key)
    other = spec.workload.model_copy(
        update={"command": ("rm", "-rf", "/"), "environment": {"LD_PRELOAD": "x"}}
    )
    proven, _ = trust(public(key)).prove(assign(spec, workload=other, session_timeout_s=1e9))
    assert proven.workload == spec.workload
    assert proven.session_timeout_s == spec.session_timeout_s


def test_signature_that_was_made_for_something_else_is_refused(key, trust):
    spec = sign(key)
    words = ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", "git"]
    text = spec.signed.statement.encode()
    made = subprocess.run(words, input=text, capture_output=True, check=True).stdout.decode()
    elsewhere = spec.signed.model_copy(update={"signature": made})
    with pytest.raises(NotSigned, match="no key that this agent trusts"):
        trust(public(key)).prove(assign(spec, signed=elsewhere))


@pytest.mark.parametrize(
    "nonsense", ["", "x", "-----BEGIN SSH SIGNATURE-----\nU1NI\n-----END SSH SIGNATURE-----\n"]
)
def test_signature_that_is_none_is_refused(key, trust, nonsense):
    spec = sign(key)
    with pytest.raises(NotSigned):
        trust(public(key)).prove(
            assign(spec, signed=spec.signed.model_copy(update={"signature": nonsense or " "}))
        )


def test_signature_that_expired_is_refused(key, trust):
    spec = sign(key, seconds=3600.0)
    assert trust(public(key), at=NOW + timedelta(seconds=3599)).prove(assign(spec))
    with pytest.raises(NotSigned, match=r"expired at 2026-01-01 01:00 UTC.*--sign-for"):
        trust(public(key), at=NOW + timedelta(seconds=3600)).prove(assign(spec))


def test_signature_counts_for_one_job_only_and_for_all_its_sessions(key, trust):
    spec = sign(key)
    trust(public(key)).prove(assign(spec))
    # Another agent of the same work directory is this one, started again.
    trust(public(key)).prove(assign(spec))
    with pytest.raises(NotSigned, match="used before, for job j1"):
        trust(public(key)).prove(assign(spec, job_id="j2"))


def test_launch_with_a_strategy_that_was_not_signed_is_refused(key, trust):
    spec = sign(key, freeze=("NCCL_ALGO",))
    signers = trust(public(key))
    assert signers.prove(assign(spec, cold={"NCCL_BUFFSIZE": 8388608}))
    with pytest.raises(NotSigned, match=r"NCCL_ALGO = 'Ring'.*the job freezes it"):
        signers.prove(assign(spec, cold={"NCCL_ALGO": "Ring"}))


def test_gang_of_another_size_is_refused(key, trust):
    with pytest.raises(NotSigned, match="signed for 1 nodes, and the session has 3"):
        trust(public(key)).prove(assign(sign(key), nnodes=3))


def test_file_of_keys_that_cannot_work_is_refused_at_the_start(tmp_path, trust):
    rsa = make_key(tmp_path, "old", "rsa")
    with pytest.raises(BadConfiguration, match="without an Ed25519 key"):
        trust(public(rsa))
    with pytest.raises(BadConfiguration, match="holds no key"):
        trust()
    with pytest.raises(BadConfiguration, match=r"cannot be read.*No such file"):
        TrustedSigners(tmp_path / "missing", tmp_path)


def test_agent_without_openssh_says_so_at_the_start(key, trust, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BadConfiguration, match="ssh-keygen, which is not on this agent's PATH"):
        trust(public(key))


def test_server_learns_why_an_agent_declines_and_the_agent_serves_on(key, tmp_path):
    (tmp_path / "trusted").write_text(public(key))
    unsigned = assign(sign(key).model_copy(update={"signed": None}))
    polls = [{"assignment": json.loads(unsigned.model_dump_json(context=WITH_SECRETS))}, {}]
    ends, nodes = [], []

    def answer(request):
        path = request.url.path
        if path.endswith("/agents"):
            nodes.append(json.loads(request.content)["node"])
            return httpx.Response(200, json={"agent_id": "7", "token": "own", "poll_s": 0.01})
        if path.endswith("/poll"):
            if len(polls) == 1:
                agent.stop()
            return httpx.Response(200, json=polls.pop(0))
        ends.append((path, json.loads(request.content)))
        return httpx.Response(204)

    settings = AgentSettings(
        server_url="http://server",
        name="a0",
        work_dir=tmp_path / "a0",
        isolate=False,
        require_signed=tmp_path / "trusted",
    )
    client = ServerClient("http://server", "t", transport=httpx.MockTransport(answer))
    agent = Agent(settings, client, NoGpus(), {"PATH": os.defpath})
    agent.run()
    assert [node["signed_only"] for node in nodes] == [True]
    ((path, end),) = ends
    assert path.endswith("/sessions/s1/end")
    assert end["trouble"]["code"] == "not_signed"
    assert end["trouble"]["fatal"]
    assert end["trouble"]["sentence"].startswith("a0: This agent starts signed jobs only")


def test_memory_of_signatures_that_is_damaged_refuses_and_says_what_to_do(key, trust, tmp_path):
    signers = trust(public(key))
    (tmp_path / "signed-jobs.json").write_text("")
    with pytest.raises(NotSigned, match=r"signed-jobs\.json.*delete the file"):
        signers.prove(assign(sign(key)))


def test_signature_is_remembered_over_a_clock_that_was_set_ahead(key, trust):
    spec = sign(key)
    trust(public(key)).prove(assign(spec))
    later = sign(key, 4 * WEEK_S)
    trust(public(key), at=NOW + timedelta(days=10)).prove(assign(later, job_id="j2"))
    with pytest.raises(NotSigned, match="used before"):
        trust(public(key)).prove(assign(spec, job_id="j3"))
