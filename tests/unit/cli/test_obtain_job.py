"""Which job a tuning on a machine of its own works on, and what happens to those in the way."""

from pathlib import Path

import pytest

from advisor.cli.exits import CommandFailed
from advisor.cli.screen import Screen
from advisor.cli.tuning.obtain_job import WantedJob, obtain_job
from advisor.client import Client
from advisor.local.record import note_tuning
from advisor.protocol.asked.jobs import JobSpec, JobState

from .fake_server import TOKEN, FakeServer

SPEC = JobSpec.model_validate({"name": "mine", "workload": {"command": ["torchrun", "t.py"]}})


def test_interrupted_job_in_the_way_is_told_not_measured_silently(server: FakeServer) -> None:
    server.add_job("old", JobState.RUNNING)
    with Client(server.url, TOKEN) as client, pytest.raises(CommandFailed) as raised:
        obtain_job(client, WantedJob(SPEC), Screen(), alone=True)
    assert "advisor tune --resume old" in raised.value.hint
    assert not server.submitted


def test_new_gives_up_the_interrupted_job(server: FakeServer) -> None:
    server.add_job("old", JobState.RUNNING)
    server.add_job("older", JobState.FINISHED)
    with Client(server.url, TOKEN) as client:
        obtain_job(client, WantedJob(SPEC, new=True), Screen(), alone=True)
    assert server.cancelled == ["old"]
    assert server.submitted == [SPEC]


def test_a_race_of_a_lab_lets_the_interrupted_one_wait(server: FakeServer) -> None:
    server.add_job("old", JobState.RUNNING)
    with Client(server.url, TOKEN) as client:
        obtain_job(client, WantedJob(SPEC, new=True, pauses=True), Screen(), alone=True)
    assert server.jobs["old"].state is JobState.PAUSED
    assert server.submitted == [SPEC]
    assert not server.cancelled


def test_others_jobs_on_a_shared_server_are_left_alone(server: FakeServer) -> None:
    server.add_job("theirs", JobState.RUNNING)
    with Client(server.url, TOKEN) as client:
        obtain_job(client, WantedJob(SPEC, new=True), Screen(), alone=False)
    assert not server.cancelled


def test_same_job_is_resumed_and_another_specification_is_not(server: FakeServer) -> None:
    server.add_job("same", JobState.RUNNING, spec=SPEC)
    with Client(server.url, TOKEN) as client:
        assert obtain_job(client, WantedJob(SPEC), Screen(), alone=True).id == "same"
        other = SPEC.model_copy(update={"seed": 1})
        assert obtain_job(client, WantedJob(other), Screen(), alone=False).id == "new-1"


def test_of_two_unfinished_jobs_the_one_that_is_named_goes_on_and_the_other_waits(server: FakeServer) -> None:
    server.add_job("one", JobState.RUNNING)
    server.add_job("two", JobState.QUEUED)
    with Client(server.url, TOKEN) as client:
        assert obtain_job(client, WantedJob(None, resume="one"), Screen(), alone=True).id == "one"
        assert server.jobs["two"].state is JobState.PAUSED
        assert obtain_job(client, WantedJob(None, resume="two"), Screen(), alone=True).id == "two"
    assert server.jobs["one"].state is JobState.PAUSED
    assert not server.cancelled


def test_job_that_waits_on_nodes_goes_on_by_what_put_the_command_there(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note_tuning(tmp_path, "ray tune --nodes=2 --state /kept")
    server.add_job("old", JobState.RUNNING)
    with Client(server.url, TOKEN) as client:
        obtain_job(client, WantedJob(SPEC), Screen(), alone=True, on_nodes=tmp_path)
    assert "advisor ray tune --nodes=2 --state /kept --resume old" in "".join(capsys.readouterr())


def test_job_that_is_being_cancelled_is_neither_resumed_nor_in_the_way(server: FakeServer) -> None:
    server.add_job("given-up", JobState.CANCELLING, spec=SPEC)
    with Client(server.url, TOKEN) as client:
        assert obtain_job(client, WantedJob(SPEC), Screen(), alone=True).id == "new-1"
