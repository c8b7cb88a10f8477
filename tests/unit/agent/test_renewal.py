"""Beats: which answers end a session, which leave that to the fence, and what is sent again without one."""

import json

import httpx
import pytest

from advisor.protocol.measured.telemetry import TelemetryBatch, TelemetrySample
from agent.client import ServerClient
from agent.sessions.renewal import News, Renewal


def _beat(*answers):
    left = list(answers)
    client = ServerClient(
        "http://server", "t", transport=httpx.MockTransport(lambda _: left.pop(0) if left[1:] else left[0])
    )
    renewal = Renewal(
        client,
        "s",
        1,
        beat_s=1.0,
        fence_s=9.0,
        collect=lambda _: News(),
        clock=lambda: 0.0,
        rendezvous=None,
        uniform=lambda low, high: (low + high) / 2,
    )
    renewal.beat_now()
    return renewal


def _problem(status, code):
    return httpx.Response(status, json={"type": f"urn:fleet-advisor:problem:{code}", "detail": "No."})


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (_problem(409, "stale_session"), "given up by the server"),
        (_problem(401, "unauthenticated"), "no longer accepts this agent"),
        (httpx.Response(200, json={"state": "ended"}), "ended the session"),
    ],
)
def test_servers_own_word_ends_the_session(answer, word):
    assert word in _beat(answer).over_because


@pytest.mark.parametrize(
    "answer",
    [httpx.Response(status, html="<h1>nginx</h1>") for status in (200, 401, 403, 404, 409, 503)]
    + [_problem(413, "content_too_large"), httpx.Response(200, json={"state": "of the next release"})],
)
def test_what_a_proxy_answers_leaves_the_end_to_the_fence(answer):
    renewal = _beat(answer)
    assert not renewal.is_over
    assert renewal.reply is None


def test_beat_reply_with_fields_of_a_newer_server_is_understood():
    renewal = _beat(httpx.Response(200, json={"state": "running", "rendezvous": "h:1", "mood": {"a": 1}}))
    assert renewal.reply is not None
    assert renewal.reply.rendezvous == "h:1"


def test_server_names_how_often_to_beat_and_when_to_give_up():
    renewal = _beat(
        httpx.Response(200, json={"state": "running", "rendezvous": "h:1", "beat_s": 50, "fence_s": 90})
    )
    assert (renewal.pause_s(), renewal.fence_s) == (50, 90)


def test_server_of_before_leaves_both_as_they_were_at_registration():
    renewal = _beat(httpx.Response(200, json={"state": "running", "rendezvous": "h:1"}))
    assert (renewal.pause_s(), renewal.fence_s) == (1, 9)


def test_beat_that_was_not_acknowledged_is_soon_followed_by_another():
    answers = [
        httpx.Response(200, json={"state": "running", "rendezvous": "h:1", "beat_s": 50, "fence_s": 90}),
        httpx.Response(502, html="<h1>nginx</h1>"),
    ]
    renewal = _beat(*answers)
    renewal.beat_now()
    assert (renewal.pause_s(), renewal.fence_s) == (1, 90)


class _Server:
    """What beats brought; every answer in `lost` does not reach the agent."""

    def __init__(self, *lost):
        self.beats, self._lost = [], lost

    def __call__(self, request):
        self.beats.append(json.loads(request.content))
        if len(self.beats) in self._lost:
            raise httpx.ReadTimeout("no answer")
        return httpx.Response(200, json={"state": "running", "rendezvous": "h:1"})

    def read(self):
        """The number, the log and the ages of the samples of each beat."""
        return [
            (beat["news"], beat["log"], [sample["age_s"] for sample in beat["telemetry"]["samples"]])
            for beat in self.beats
        ]


@pytest.fixture
def beat_every_second():
    """Send a beat a second, each of which has a line and a sample, to a server."""

    def beat(server, count):
        now = [0.0]

        def collect(_):
            sample = TelemetrySample(age_s=0.5, cpu=0.1)
            return News(int(now[0]), TelemetryBatch(samples=(sample,)), f"line {now[0]:g}\n")

        renewal = Renewal(
            ServerClient("http://server", "t", transport=httpx.MockTransport(server)),
            "s",
            1,
            beat_s=1.0,
            fence_s=9.0,
            collect=collect,
            clock=lambda: now[0],
            rendezvous=None,
        )
        for _ in range(count):
            now[0] += 1
            renewal.beat_now()

    return beat


def test_news_whose_answer_was_lost_are_sent_again_as_they_were_and_what_came_since_after_them(
    beat_every_second,
):
    server = _Server(2, 3)
    beat_every_second(server, 5)
    assert server.read() == [
        (1, "line 1\n", [0.5]),
        (2, "line 2\n", [0.5]),
        (2, "line 2\n", [1.5]),
        (2, "line 2\n", [2.5]),
        # In the same second, and with what came in it.
        (3, "line 3\nline 4\nline 4\n", [1.5, 0.5, 0.5]),
        (4, "line 5\n", [0.5]),
    ]


def test_beat_that_was_answered_is_followed_by_one_beat_a_time(beat_every_second):
    server = _Server()
    beat_every_second(server, 3)
    assert [news for news, _, _ in server.read()] == [1, 2, 3]
