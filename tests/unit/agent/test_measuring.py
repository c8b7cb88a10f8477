"""What a session does after the server's answer to a measurement: a quarantine is not the session's end."""

import errno

import httpx
import pytest

from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.measured.messages import Assignment
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.training.workload import Workload
from agent.client import ServerClient
from agent.sessions.control import Hello
from agent.sessions.delivery import Delivery
from agent.sessions.measuring import Measuring
from agent.sessions.outcome import Cause
from agent.sessions.spool import Spool, list_reports
from tests.unit.tuning.simulated_cluster import make_facts


def _race(block_id):
    return {"race": {"arms": [{"block_id": block_id, "trial_number": 0}]}}


def _problem(status, code):
    document = {"type": f"urn:fleet-advisor:problem:{code}", "detail": "It is kept."}
    return httpx.Response(status, json=document)


class Server:
    """Answers reports with one document, and gives races in order."""

    def __init__(self, report, *races):
        self.report, self.races = report, [_race("b1"), *races]

    def answer(self, request):
        if request.url.path.endswith("/hello"):
            return httpx.Response(204)
        if request.url.path.endswith("/next"):
            return httpx.Response(200, json=self.races.pop(0))
        return self.report


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path)


@pytest.fixture
def measure(spool):
    """Takes the race b1 to a server; returns the session's measuring and what is measured next."""

    def run(server, signed=None):
        seconds = iter(range(0, 10_000, 100))
        client = ServerClient("http://server", "t", transport=httpx.MockTransport(server.answer))
        measuring = Measuring(
            Assignment(
                session_id="s",
                generation=1,
                job_id="j",
                node_rank=0,
                nnodes=1,
                workload=Workload(command=("torchrun", "train.py")),
            ),
            client,
            Delivery(client, spool, lambda: 0.0),
            count_steps=lambda: 0,
            is_given_up=lambda: False,
            signed=signed,
            clock=lambda: float(next(seconds)),
        )
        result = BlockResult(step_time_s=(1.0, 1.0), samples_per_step=8.0, wall_s=2.0, steps=2)
        measuring.greet(Hello(make_facts(), {}, {}))
        return measuring, measuring.take_race("b1", {"b1": result})

    return run


@pytest.mark.parametrize("code", ["result_quarantined", "result_differs"])
def test_session_goes_on_after_a_measurement_that_does_not_count(measure, spool, code):
    measuring, reply = measure(Server(_problem(409, code), _race("b2")))
    assert measuring.ending is None
    assert reply.race.race_id == "b2"
    assert list(spool.list_waiting()) == []
    assert list_reports(spool.quarantine) == []


def test_session_ends_with_the_servers_own_reason(measure):
    answers = Server(_problem(409, "result_quarantined"), {"end_because": "The job was cancelled."})
    measuring, reply = measure(answers)
    assert reply.end_because == "The job was cancelled."
    assert (measuring.ending.cause, measuring.ending.sentence) == (Cause.INSTRUCTED, "The job was cancelled.")


def test_race_whose_report_never_counts_is_not_run_for_ever(measure):
    measuring, reply = measure(Server(_problem(409, "result_quarantined"), _race("b1")))
    assert reply.race is None
    assert (measuring.ending.cause, measuring.ending.sentence) == (Cause.NONSENSE, "It is kept.")


def test_session_that_is_somebody_elses_ends_at_once(measure):
    measuring, _ = measure(Server(_problem(409, "stale_session")))
    assert measuring.ending.cause is Cause.SERVER_ENDED


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"fuse_grad_size_in_MB": 8.0}, ""),
        ({"num_threads": 2}, "freezes it"),
        ({"fuse_grad_size_in_MB": 1e9}, "must lie in"),
        ({"NCCL_SOCKET_IFNAME": "$(reboot)"}, "may be any text"),
        ({"warp_speed": 1}, "no such knob"),
    ],
)
def test_strategy_that_the_owner_did_not_sign_is_not_tried(measure, overrides, why):
    race = _race("b2")
    race["race"]["arms"].append({"block_id": "b3", "trial_number": 1, "overrides": overrides})
    accepted = httpx.Response(200, json={"race_id": "b1", "sentence": "It counts."})
    signed = JobSpec(workload=Workload(command=("torchrun", "train.py")), freeze=("num_threads",))
    measuring, reply = measure(Server(accepted, race), signed)
    if not why:
        assert reply.race.race_id == "b2"
        return
    assert reply.race is None
    assert why in reply.end_because
    assert (measuring.ending.trouble.code, measuring.ending.trouble.fatal) == ("not_signed", True)


def test_disk_that_is_full_ends_the_session_and_says_so(measure, spool, monkeypatch):
    def put(report):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spool, "put", put)
    measuring, reply = measure(Server(httpx.Response(204)))
    assert measuring.ending.cause is Cause.DISK_FULL
    assert "No space left on device" in reply.end_because
