"""What ends an agent and what does not: its own server's word, a proxy's, and assignments of other releases."""

import errno
import json
import os
import tempfile
from pathlib import Path

import httpx
import pytest
import typer

from agent import cli
from agent.client import ServerClient
from agent.errors import NotWelcome
from agent.loop import Agent
from agent.settings import AgentSettings
from tests.no_gpus import NoGpus

_REGISTERED = {"agent_id": "7", "token": "own", "poll_s": 0.01, "beat_s": 0.05, "fence_s": 5.0}
_PLACE = {"session_id": "s1", "generation": 3, "job_id": "j", "node_rank": 0, "nnodes": 1}


def _problem(status, code):
    body = {"type": f"urn:fleet-advisor:problem:{code}", "code": code, "detail": "The token is revoked."}
    return httpx.Response(status, json=body)


class Server:
    """Registers an agent, gives it these answers to its polls one after the other, and then stops it."""

    def __init__(self, *polls):
        self._polls = list(polls)
        self.agent = None
        self.registrations = 0
        self.registered = []
        self.ends = []

    def answer(self, request):
        path = request.url.path.removeprefix("/api/v1/")
        if path == "agents":
            self.registrations += 1
            self.registered.append(json.loads(request.content))
            return httpx.Response(200, json=_REGISTERED)
        if path.endswith("/poll"):
            if self._polls:
                return self._polls.pop(0)
            self.agent.stop()
            return httpx.Response(200, json={})
        if path.endswith("/end"):
            self.ends.append(json.loads(request.content))
            return httpx.Response(204)
        return httpx.Response(200, json={"state": "running", "rendezvous": None})


def _serve(server, tmp_path, monkeypatch):
    monkeypatch.setattr("agent.loop._PAUSE_AFTER_REFUSAL_S", 0.0)
    client = ServerClient("http://server", "t", transport=httpx.MockTransport(server.answer))
    settings = AgentSettings(server_url="http://server", name="a0", work_dir=tmp_path / "a0", isolate=False)
    server.agent = Agent(settings, client, NoGpus(), {"PATH": os.defpath})
    server.agent.run()


def test_revoked_agent_ends_and_does_not_enrol_itself_again(tmp_path, monkeypatch):
    server = Server(httpx.Response(200, json={}), _problem(401, "unauthenticated"))
    with pytest.raises(NotWelcome, match=r"was revoked.*start it again"):
        _serve(server, tmp_path, monkeypatch)
    assert server.registrations == 1


def test_command_of_a_revoked_agent_has_an_exit_code_of_its_own(tmp_path, monkeypatch, capsys):
    server = Server(_problem(401, "unauthenticated"))
    client = ServerClient("http://server", "t", transport=httpx.MockTransport(server.answer))
    monkeypatch.setattr(cli, "ServerClient", lambda *_: client)
    monkeypatch.setattr(cli, "hide_memory", lambda: None)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    with pytest.raises(typer.Exit) as exit_of:
        cli.run("http://server", work_dir=tmp_path, isolate=False, allow_root=[Path("/")])
    assert exit_of.value.exit_code == 3
    assert "was revoked" in capsys.readouterr().err


def _run_command(server, tmp_path, monkeypatch, **options):
    client = ServerClient("http://server", "t", transport=httpx.MockTransport(server.answer))
    agents = []

    class Remembered(Agent):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            agents.append(self)
            server.agent = self

    monkeypatch.setattr(cli, "ServerClient", lambda *_: client)
    monkeypatch.setattr(cli, "Agent", Remembered)
    monkeypatch.setattr(cli, "hide_memory", lambda: None)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    cli.run("http://server", work_dir=tmp_path, isolate=False, allow_root=[Path("/")], **options)


def test_agent_says_where_it_is_and_how_long_it_stays(tmp_path, monkeypatch):
    server = Server()
    _run_command(server, tmp_path, monkeypatch, pool="gpu", label=["rack=7", "disk="], ends_in="2h")
    (said,) = server.registered
    assert said["node"]["pool"] == "gpu"
    assert said["node"]["labels"] == {"rack": "7", "disk": ""}
    assert 0 < said["ends_in_s"] <= 7200


def test_agent_that_registers_again_says_what_is_left_of_its_time(tmp_path):
    server = Server(_problem(404, "agent_not_found"))
    client = ServerClient("http://server", "t", transport=httpx.MockTransport(server.answer))
    settings = AgentSettings(server_url="http://server", work_dir=tmp_path, isolate=False, ends_in_s=100)
    times = iter((0.0, 30.0, 250.0))
    latest = [0.0]

    def clock():
        latest[0] = next(times, latest[0])
        return latest[0]

    server.agent = Agent(settings, client, NoGpus(), {"PATH": os.defpath}, clock=clock)
    server.agent.run()
    first, second = (said["ends_in_s"] for said in server.registered)
    assert 100 > first > second == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"label": ["rack"]}, "--label rack has no value: write it as rack=7"),
        ({"label": ["-=7"]}, "labels"),
        ({"pool": "a b"}, "pool"),
        ({"ends_in": "tomorrow"}, "--ends-in: 'tomorrow' is no span of time"),
    ],
)
def test_labels_pools_and_ends_that_make_no_sense_are_refused(options, words, tmp_path, monkeypatch, capsys):
    with pytest.raises(typer.Exit) as exit_of:
        _run_command(Server(), tmp_path, monkeypatch, **options)
    assert exit_of.value.exit_code == 2
    assert words in capsys.readouterr().err


def test_agent_that_the_server_does_not_know_registers_again(tmp_path, monkeypatch):
    server = Server(_problem(404, "agent_not_found"))
    _serve(server, tmp_path, monkeypatch)
    assert server.registrations == 2


@pytest.mark.parametrize(
    "answer",
    [httpx.Response(status, html="<h1>nginx</h1>") for status in (200, 401, 403, 404, 413)]
    + [httpx.Response(404, json={"code": 404, "message": "no route"})],
)
def test_agent_outlives_what_a_proxy_answers(answer, tmp_path, monkeypatch):
    server = Server(answer, answer)
    _serve(server, tmp_path, monkeypatch)
    assert server.registrations == 1


@pytest.mark.parametrize("what", ["folder", "mark", "ranks' folder"])
def test_session_whose_folders_cannot_be_made_is_given_back_and_the_agent_goes_on(
    what, tmp_path, monkeypatch
):
    workload = {"command": ["/no/such/program"], "working_dir": str(tmp_path)}
    assigned = [{**_PLACE, "session_id": name, "workload": workload} for name in ("s1", "s2")]
    server = Server(*(httpx.Response(200, json={"assignment": each}) for each in assigned))
    failing = {
        "folder": (Path, "mkdir"),
        "mark": (Path, "write_text"),
        "ranks' folder": (tempfile, "mkdtemp"),
    }
    module, name = failing[what]
    real, failed = getattr(module, name), []

    def fail_once(*arguments, **options):
        is_sessions = what == "ranks' folder" or "s1-3" in str(arguments[0])
        if is_sessions and not failed:
            failed.append(arguments)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **options)

    monkeypatch.setattr(module, name, fail_once)
    _serve(server, tmp_path, monkeypatch)
    given_back, taken = server.ends
    assert given_back["outcome"] == "lost"
    assert "No space left on device" in given_back["reason"]
    assert given_back["trouble"] is None
    assert "was not found" in taken["reason"]
    assert not list((tmp_path / "a0" / "sessions").glob("*/assignment.json"))


def test_assignment_with_fields_of_a_newer_server_is_taken(tmp_path, monkeypatch):
    """Recorded from this release, with a field more at every depth."""
    workload = {"command": ["/no/such/program"], "working_dir": str(tmp_path), "priority": 7}
    assignment = {**_PLACE, "workload": workload, "cold": {}, "colour": "red"}
    server = Server(httpx.Response(200, json={"assignment": assignment, "retry_s": 3}))
    _serve(server, tmp_path, monkeypatch)
    (end,) = server.ends
    assert "/no/such/program was not found" in end["reason"]
    assert end["generation"] == 3


@pytest.mark.parametrize(
    ("of_a_newer_server", "word"),
    [
        ({"workload": {"command": ["x"], "kind": "jax"}}, "assignment.workload.kind"),
        ({"workload": {"command": ["x"], "base": {"warp_speed": 1}}}, "warp_speed"),
        ({"workload": {"command": ["x ${warp_speed}"], "kind": "command"}}, "warp_speed"),
        ({"workload": {"command": ["x"]}, "cold": {"warp_speed": 1}}, "warp_speed"),
        (
            {
                "workload": {
                    "command": ["x ${num_threads}"],
                    "kind": "command",
                    "pattern": "(?=a)(?P<step_time_s>1)",
                }
            },
            "no usable regular expression",
        ),
    ],
)
def test_assignment_that_makes_no_sense_here_ends_that_job_only(
    of_a_newer_server, word, tmp_path, monkeypatch
):
    unknown = {**_PLACE, **of_a_newer_server}
    known = {**_PLACE, "session_id": "s2"}
    known["workload"] = {"command": ["/no/such/program"], "working_dir": str(tmp_path)}
    server = Server(
        httpx.Response(200, json={"assignment": unknown}), httpx.Response(200, json={"assignment": known})
    )
    _serve(server, tmp_path, monkeypatch)
    declined, taken = server.ends
    assert word in declined["reason"]
    assert declined["trouble"]["code"] == "launch_failed"
    assert "was not found" in taken["reason"]
