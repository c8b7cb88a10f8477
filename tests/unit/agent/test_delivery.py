"""What becomes of a spooled report at every answer: it is deleted on the server's own word only."""

import httpx
import pytest

from agent.client import ServerClient
from agent.errors import AgentError, ServerFailed, ServerRefused
from agent.sessions.delivery import Delivery
from agent.sessions.spool import Spool, SpooledReport, list_reports, read_reason


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.now_s = 100.0

    def sleep(self, seconds):
        self.now_s += seconds

    def read(self):
        return self.now_s


class Server:
    """Answers reports as it is told, by race."""

    def __init__(self):
        self.answers = {}
        self.seen = []

    def answer(self, request):
        race = request.url.path.rpartition("/")[2]
        self.seen.append(race)
        status, code = self.answers.get(race, (200, ""))
        if status == 200:
            return httpx.Response(200, json={"race_id": race, "sentence": "It counts."})
        problem = {"type": f"urn:fleet-advisor:problem:{code}", "code": code, "detail": "No."} if code else {}
        return httpx.Response(status, json=problem)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path)


@pytest.fixture
def delivery(server, spool, clock):
    client = ServerClient(
        "http://server",
        "t",
        transport=httpx.MockTransport(server.answer),
        clock=clock.read,
        sleep=clock.sleep,
    )
    return Delivery(client, spool, clock.read)


def _report(race):
    return SpooledReport(session_id="s", race_id=race, body="{}")


def _waiting(spool):
    return sorted(entry.report.race_id for entry in spool.list_waiting())


def test_accepted_report_is_deleted(delivery, spool):
    delivery.deliver(_report("b1"), lambda: False)
    assert _waiting(spool) == []
    assert list_reports(spool.quarantine) == []


@pytest.mark.parametrize(
    ("status", "code"),
    [(409, "result_quarantined"), (409, "result_differs"), (422, "invalid_result")],
)
def test_report_that_the_server_has_decided_about_is_deleted(delivery, spool, server, status, code):
    server.answers["b1"] = (status, code)
    with pytest.raises(ServerRefused):
        delivery.deliver(_report("b1"), lambda: False)
    assert _waiting(spool) == []
    assert list_reports(spool.quarantine) == []


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "unauthenticated"), (401, ""), (403, "forbidden"), (403, ""), (404, ""), (404, "not_found"),
     (421, "wrong_host"), (426, "protocol_mismatch")],
)  # fmt: skip
def test_report_refused_for_the_way_it_came_is_tried_again(delivery, spool, server, clock, status, code):
    server.answers["b1"] = (status, code)
    with pytest.raises(AgentError):
        delivery.deliver(_report("b1"), lambda: False)
    assert _waiting(spool) == ["b1"]
    del server.answers["b1"]
    clock.now_s += 31
    delivery.hand_in_waiting()
    assert _waiting(spool) == []
    assert server.seen == ["b1", "b1"]


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, ""), (409, ""), (409, "a_code_of_the_next_release"), (410, ""), (413, "content_too_large"), (413, ""),
     (415, ""), (422, ""), (422, "invalid_request")],
)  # fmt: skip
def test_report_refused_for_itself_is_set_aside(delivery, spool, server, status, code):
    server.answers["b1"] = (status, code)
    with pytest.raises(AgentError):
        delivery.deliver(_report("b1"), lambda: False)
    assert _waiting(spool) == []
    (aside,) = list_reports(spool.quarantine)
    assert str(status) in read_reason(aside)
    assert code in read_reason(aside)


def test_report_that_always_fails_keeps_no_other_waiting(delivery, spool, server):
    for race in ("b1", "b2", "b3"):
        spool.put(_report(race))
    server.answers["b2"] = (500, "internal_error")
    delivery.hand_in_waiting()
    assert _waiting(spool) == ["b2"]
    assert sorted(server.seen) == ["b1", "b2", "b3"]


def test_report_that_always_fails_is_tried_ever_more_rarely(delivery, spool, server, clock):
    spool.put(_report("b1"))
    server.answers["b1"] = (500, "internal_error")
    for _ in range(24 * 60):
        delivery.hand_in_waiting()
        clock.now_s += 60
    assert 24 < len(server.seen) < 40
    assert _waiting(spool) == ["b1"]


def test_report_that_fails_within_a_session_waits_for_later(delivery, spool, server):
    server.answers["b1"] = (500, "internal_error")
    with pytest.raises(ServerFailed):
        delivery.deliver(_report("b1"), lambda: False)
    assert _waiting(spool) == ["b1"]


def test_nothing_more_is_tried_while_the_server_is_away(delivery, spool, server):
    for race in ("b1", "b2", "b3"):
        spool.put(_report(race))
        server.answers[race] = (503, "unavailable")
    delivery.hand_in_waiting()
    assert len(server.seen) == 1
    assert _waiting(spool) == ["b1", "b2", "b3"]
    server.answers.clear()
    delivery.hand_in_waiting()
    assert _waiting(spool) == []
