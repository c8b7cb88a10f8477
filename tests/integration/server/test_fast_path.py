"""What agents say all the time is answered on a shorter way, and nobody can tell which way it went."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from advisor.api.sessions import take_report
from advisor.errors import Unavailable
from advisor.protocol.views import RaceAccepted
from advisor.services.measuring.races import Accepted
from advisor.services.metrics import Metrics
from tests.integration.server.served import Served
from tests.integration.server.stage import TELEMETRY, Stage

SHORT, LONG = "application/json", "application/json; charset=utf-8"
"""Only a content type without anything else goes the short way."""


class Spoken:
    """What one agent says to a server of its own, always one of the two ways."""

    def __init__(self, data_dir: Path, content_type: str) -> None:
        self.server = Served(data_dir)
        self.stage = Stage(self.server)
        self.content_type = content_type
        assert self.stage.agent.place is not None
        self.session = self.stage.agent.place.session_id
        self.written = 0
        database = self.server.app.state.context.database
        write = database.write

        async def count(task: Callable[..., Any]) -> Any:
            self.written += 1
            return await write(task)

        database.write = count

    def say(self, path: str, body: bytes, token: str | None = None) -> Any:
        """Send a body to a session's address; return status, body and headers, without what differs by chance."""
        token = self.stage.agent.token if token is None else token
        reply = self.server.ask(
            "POST", path.format(session=self.session, race=self.stage.race_id), token,
            content=body, headers={"Content-Type": self.content_type, "X-Request-ID": "told"},
        )  # fmt: skip
        text = reply.text
        for known, name in ((self.session, "S"), (self.stage.race_id, "R"), (self.stage.job.id, "J")):
            text = text.replace(known, name)
        headers = {
            name: value for name, value in reply.headers.items() if name not in {"date", "content-length"}
        }
        return reply.status_code, text, headers

    def report(self, **wrong: object) -> bytes:
        """A report of the race; other words are fields of each result."""
        _, _, _, document = self.stage.documents["POST /sessions/{session_id}/races/{race_id}"]
        results = {block: result | wrong for block, result in document["results"].items()}
        return json.dumps(document | {"results": results}).encode()

    def tell(self) -> tuple[list[str], dict[str, float]]:
        """The job's story, and what was counted of requests to sessions."""
        events = self.server.ask("GET", f"/jobs/{self.stage.job.id}/history").json()
        outcomes = [block["state"] for block in events["blocks"]]
        text = self.server.http.get("/metrics", headers={"Authorization": f"Bearer {self.server.admin}"}).text
        counted = re.findall(r"requests?_(?:seconds_count|in_progress)\{([^}]*sessions[^}]*)\} (\S+)", text)
        return outcomes, {labels: float(value) for labels, value in counted if "next" not in labels}


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[Spoken, Spoken]]:
    short, long = Spoken(tmp_path / "short", SHORT), Spoken(tmp_path / "long", LONG)
    yield short, long
    short.server.stop()
    long.server.stop()


BEAT = "/sessions/{session}/beat"
RACE = "/sessions/{session}/races/{race}"
ALIVE = b'{"generation":1,"state":"running","steps":3}'
SAMPLED = json.dumps(
    {"generation": 1, "state": "running", "news": 1, "telemetry": {"samples": [TELEMETRY]}}
).encode()
"""It is written by a thread: how long that takes depends on what was measured before."""


def test_answers_are_the_same_on_both_ways(both: tuple[Spoken, Spoken]) -> None:
    def ask_both(path: str, body: Callable[[Spoken], bytes], token: str | None = None) -> tuple[int, str]:
        short, long = (one.say(path, body(one), token) for one in both)
        assert short == long
        return int(short[0]), str(short[1])

    assert ask_both(BEAT, lambda _: ALIVE)[0] == 200
    assert ask_both(BEAT, lambda _: SAMPLED)[0] == 200
    assert ask_both(BEAT, lambda _: b'{"generation":7,"state":"running"}')[0] == 409
    for wrong in (b"", b"{", b"[]", b'{"generation":true,"state":"running"}', b'{"generation":1}',
                  b'{"generation":1,"state":"running","log":"\\ud800"}', b'{"generation":1e400}'):  # fmt: skip
        status, problem = ask_both(BEAT, lambda _, wrong=wrong: wrong)  # type: ignore[misc]
        assert (status, json.loads(problem)["request_id"]) == (422, "told")
    assert ask_both("/sessions/nobody/beat", lambda _: ALIVE)[0] == 409
    assert ask_both(BEAT, lambda _: ALIVE, "adv_agent_x_y")[0] == 401
    assert ask_both(BEAT, lambda _: ALIVE, "")[0] == 401
    assert ask_both(RACE, lambda one: one.report(wall_s=-1.0))[0] == 422
    assert ask_both("/sessions/{session}/races/other", lambda one: one.report())[0] == 409
    assert ask_both(RACE, lambda one: one.report())[0] == 200
    assert ask_both(RACE, lambda one: one.report())[0] == 200
    status, problem = ask_both(RACE, lambda one: one.report(wall_s=9.0))
    assert (status, json.loads(problem)["code"]) == (409, "result_differs")
    short, long = both
    assert short.tell() == long.tell()
    # Each whose body was in order, from an agent whose token was looked up before.
    assert (short.written, long.written) == (8, 0)


def test_what_fails_on_the_way_is_told_as_always(both: tuple[Spoken, Spoken]) -> None:
    def fail(error: Exception) -> list[Any]:
        def strike(*_: object) -> None:
            raise error

        for one in both:
            one.server.app.state.context.database._strike = strike
        short, long = (one.say(BEAT, ALIVE) for one in both)
        assert short == long
        return list(short)

    assert fail(Unavailable("The database went away."))[0] == 503
    status, problem, headers = fail(RuntimeError("a defect"))
    assert (status, json.loads(problem)["code"], headers["x-request-id"]) == (500, "internal_error", "told")
    assert "a defect" not in problem


def test_agent_that_asks_too_fast_is_told_so_on_both_ways(tmp_path: Path) -> None:
    for content_type in (SHORT, LONG):
        one = Spoken(tmp_path / content_type[-4:], content_type)
        buckets = one.server.app.state.buckets
        buckets._at_once, buckets._per_s, buckets._buckets = 1, 0.001, {}
        assert one.say(BEAT, ALIVE)[0] == 200
        assert one.say(BEAT, ALIVE)[0] == 429
        one.server.stop()


def test_revoked_agent_is_refused_at_its_next_message(both: tuple[Spoken, Spoken]) -> None:
    short, _ = both
    assert short.say(BEAT, ALIVE)[0] == 200
    token_id = short.stage.agent.token.split("_")[2]
    assert short.server.ask("DELETE", f"/tokens/{token_id}").status_code == 204
    assert short.say(BEAT, ALIVE)[0] == 401


@pytest.mark.parametrize("is_crowded", [False, True])
def test_what_comes_next_is_thought_about_ahead_unless_many_wait(is_crowded: bool) -> None:
    ordered: list[tuple[str, str]] = []
    context: Any = SimpleNamespace(
        clock=lambda: None,
        metrics=Metrics(),
        database=SimpleNamespace(is_crowded=is_crowded),
        stock=SimpleNamespace(think_ahead=lambda job_id, session_id: ordered.append((job_id, session_id))),
    )
    answer = Accepted(RaceAccepted(race_id="r", sentence="It counts."), "j")
    report: Any = None
    reply, _ = take_report(context, "a", report, "s", "r").conclude(answer)
    assert reply is answer.reply
    assert ordered == ([] if is_crowded else [("j", "s")])
