"""Notices over real HTTP: what a receiver is told, how it knows who says it, and whom nothing is posted to."""

import asyncio
import hashlib
import hmac
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from pydantic import ValidationError

from advisor.protocol.asked.jobs import JobState, Notice
from advisor.protocol.measured.runs import RunReport
from advisor.protocol.training.workload import WITH_SECRETS
from advisor.services.answers import runs
from advisor.services.webhooks.notices import NoticeEvent, tell_webhooks
from advisor.services.webhooks.posting import WebhookSender
from advisor.services.webhooks.receivers import Receivers
from advisor.services.webhooks.sending import MOST_AT_ONCE, PAUSES_S, Sender
from advisor.settings import Settings
from advisor.tuning.decisions import Decision, Fail
from tests.integration.server.receiving import Receiver, receiving
from tests.integration.server.served import FakeAgent, Served, wait_for
from tests.unit.services.scripted_tuning import ScriptedTuning, make_spec
from tests.unit.services.world import ADA, World

SECRET = "the key of these tests"
OPEN = {"webhook_hosts": ("127.0.0.1", "hooks.example.com"), "webhook_secret": SECRET}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver on loopback."""
    with receiving() as found:
        yield found


@pytest.fixture
def world(tmp_path: Path, migrated_file: Path) -> Iterator[World]:
    """The services without HTTP, on a clock that tests turn."""
    path = tmp_path / "advisor.db"
    path.write_bytes(migrated_file.read_bytes())
    world = World(f"sqlite:///{path}")
    yield world
    world.database.close()


class Posts:
    """What that world has to tell from now on, and what becomes of it."""

    def __init__(self, world: World, hosts: tuple[str, ...] = ("127.0.0.1",), **more: Any) -> None:
        self.notices: list[Notice] = []
        world.database.send = self.notices.append
        self.outcomes: list[str] = []
        self.told: list[str] = []
        self.webhook_sender = WebhookSender(Receivers.of(hosts), SECRET, **more)

    def send(self, patience_s: float = 60.0) -> None:
        """Let a server live for as long as it takes, without pauses between its tries."""

        async def live() -> None:
            sender = Sender(
                self.webhook_sender,
                self.outcomes.append,
                lambda _, sentence: self.told.append(sentence),
                [0.0] * len(PAUSES_S),
            )
            sender.start()
            for notice in self.notices:
                sender.send(notice)
            await sender.close(patience_s)

        asyncio.run(live())
        self.notices.clear()


class FailingTuning(ScriptedTuning):
    """Gives every job up."""

    def plan(self, *_: Any, **__: Any) -> Decision:
        """Return that it has failed."""
        return Fail("Nothing fits.")


def cancelled_job(world: World, *urls: str) -> str:
    """A job that has ended, so that its webhooks are to be told."""
    job_id = world.submit(webhooks=urls).id
    world.cancel(job_id)
    return job_id


def verify(headers: dict[str, str], body: bytes) -> None:
    """What a receiver does with a notice of ours, the agent's and the server's."""
    digest = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert headers["X-Advisor-Signature"] == f"sha256={digest}"


def test_ends_of_jobs_are_posted_with_verdict_and_headline(
    start: Callable[..., Served], receiver: Receiver
) -> None:
    server = start(**OPEN)
    job = server.submit(webhooks=(receiver.url,))
    server.ask("POST", f"/jobs/{job.id}:cancel")
    wait_for(lambda: receiver.posted or None, "the notice")
    ((headers, body),) = receiver.posted
    verify(headers, body)
    (notice,) = receiver.bodies
    assert notice["event"] == "cancelled"
    assert (notice["source"], notice["job_id"], notice["job_name"]) == (
        "fleet-advisor",
        job.id,
        job.spec.name,
    )
    assert headers["X-Advisor-Event-Id"] == notice["id"]
    assert headers["Content-Type"] == "application/json"
    assert server.job(job.id).state is JobState.CANCELLED


def test_finish_and_failure_and_alerts_are_told(world: World, receiver: Receiver) -> None:
    posts = Posts(world)
    finished = world.submit(webhooks=(receiver.url,))
    agent = world.register("a")
    (place,) = world.start_session(agent)
    while (race := world.next(place, agent).race) is not None:
        world.report(place, agent, race)
    world.end(place, agent)
    world.keep_up()
    assert world.job(finished.id).state is JobState.FINISHED
    report = {"host": "gpu7", "ranks": 8, "step": 90, "step_s": 0.02, "samples_per_s": 300.0, "low": 400.0}
    for event in ("below", None, "recovered"):
        with world.work() as work:
            said = RunReport.model_validate({**report, "event": event, "sentence": f"It is {event}."})
            runs.report_run(work, finished.id, "0123456789abcdef", said, ADA, world.now)
        world.wait(1)
    posts.send()
    told = {notice["event"]: notice for notice in receiver.bodies}
    first, below, back = told["finished"], told["below"], told["recovered"]
    assert first["verdict"] == "keep"
    assert first["sentence"] == world.job(finished.id).state_reason
    assert (below["host"], below["samples_per_s"]) == ("gpu7", 300.0)
    assert back["sentence"] == "It is recovered."
    assert len({notice["id"] for notice in receiver.bodies}) == 3


def test_failed_job_is_told(world: World, receiver: Receiver) -> None:
    posts = Posts(world)
    world.tuning = FailingTuning()
    job = world.submit(webhooks=(receiver.url,))
    world.register("a")
    world.keep_up()
    assert world.job(job.id).state is JobState.FAILED
    posts.send()
    assert [(n["event"], n["sentence"]) for n in receiver.bodies] == [("failed", "Nothing fits.")]


def test_notice_is_tried_again_with_the_same_id_until_it_is_taken(world: World, receiver: Receiver) -> None:
    receiver.answers += [500, 429, 503]
    posts = Posts(world)
    cancelled_job(world, receiver.url)
    posts.send()
    assert posts.outcomes == ["delivered"]
    assert len(receiver.posted) == 4
    assert len({headers["X-Advisor-Event-Id"] for headers, _ in receiver.posted}) == 1
    assert len({body for _, body in receiver.posted}) == 1


def test_notice_that_no_receiver_takes_is_given_up_after_a_few_tries(
    world: World, receiver: Receiver
) -> None:
    receiver.answers += [500] * 100
    posts = Posts(world)
    cancelled_job(world, receiver.url)
    posts.send()
    assert posts.outcomes == ["given_up"]
    assert len(receiver.posted) == len(PAUSES_S) + 1
    assert posts.told == [f"A webhook was not told: http://127.0.0.1:{receiver.port}/******** answered 500."]


def test_notice_that_was_given_up_is_told_by_the_job_the_log_and_the_metrics(
    start: Callable[..., Served], receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answers += [404]
    server = start(**OPEN)
    job = server.submit(webhooks=(receiver.url,))
    server.ask("POST", f"/jobs/{job.id}:cancel")
    said = f"A webhook was not told: http://127.0.0.1:{receiver.port}/******** answered 404."
    wait_for(lambda: said in server.ask("GET", f"/jobs/{job.id}/events").text or None, "the event")
    assert f"Job {job.id}: {said}" in caplog.messages
    assert (
        'fleet_advisor_webhooks_total{outcome="given_up"} 1.0'
        in server.app.state.context.metrics.write().decode()
    )


def test_transaction_that_fails_tells_nobody(world: World, receiver: Receiver) -> None:
    posts = Posts(world)
    job = world.submit(webhooks=(receiver.url,))
    with suppress(RuntimeError), world.work() as work:
        tell_webhooks(work, job.id, NoticeEvent.CANCELLED, "It ends.", world.now)
        raise RuntimeError
    assert posts.notices == []


@pytest.mark.parametrize("status", [301, 302, 307, 400, 401, 404, 410])
def test_refusal_and_redirect_are_final_and_nobody_is_followed(
    world: World, receiver: Receiver, status: int
) -> None:
    with receiving() as elsewhere:
        receiver.answers += [status]
        receiver.location = elsewhere.url
        posts = Posts(world)
        cancelled_job(world, receiver.url)
        posts.send()
        assert posts.outcomes == ["given_up"]
        assert elsewhere.posted == []
    assert len(receiver.posted) == 1
    assert f"answered {status}." in posts.told[0]
    assert "secret-path" not in posts.told[0]


def test_receiver_that_does_not_answer_holds_up_nobody_else(world: World, receiver: Receiver) -> None:
    with receiving() as stuck:
        stuck.hold = threading.Event()
        posts = Posts(world, limit_s=1.0)
        cancelled_job(world, stuck.url, receiver.url)
        posts.send()
    assert posts.outcomes == ["delivered", "given_up"]
    assert posts.told[0].endswith("took longer than 1 s.")


def test_server_that_stops_gives_up_what_waits_and_says_so(world: World, receiver: Receiver) -> None:
    receiver.hold = threading.Event()
    posts = Posts(world)
    cancelled_job(world, receiver.url)
    posts.send(patience_s=0.0)
    assert posts.outcomes == ["given_up"]
    assert posts.told == ["A webhook was not told: the server stopped before a receiver took the notice."]


def test_requests_go_on_while_a_receiver_does_not_answer(
    start: Callable[..., Served], receiver: Receiver
) -> None:
    receiver.hold = threading.Event()
    server = start(**OPEN)
    first = server.submit(webhooks=(receiver.url,))
    server.ask("POST", f"/jobs/{first.id}:cancel")
    wait_for(lambda: receiver.posted or None, "the notice")
    second = server.submit()
    FakeAgent(server, "one").take_place()
    assert server.job(second.id).state is JobState.RUNNING
    server.stop()
    assert not receiver.hold.is_set(), "stopping waits for no receiver"


def test_end_that_is_told_last_is_posted_before_the_server_stops(
    start: Callable[..., Served], receiver: Receiver
) -> None:
    receiver.hold = threading.Event()
    server = start(**OPEN)
    first, last = (server.submit(webhooks=(receiver.url,)) for _ in range(2))
    server.ask("POST", f"/jobs/{first.id}:cancel")
    wait_for(lambda: receiver.posted or None, "the notice")
    server.ask("POST", f"/jobs/{last.id}:cancel")
    receiver.hold.set()
    server.stop()
    assert {notice["job_id"] for notice in receiver.bodies} == {first.id, last.id}


def test_name_that_takes_for_ever_to_resolve_holds_up_nobody_else(world: World, receiver: Receiver) -> None:
    found = threading.Event()

    def resolve(host: str, _: int) -> list[str]:
        if host != "127.0.0.1":
            found.wait(60)
        return ["127.0.0.1"]

    posts = Posts(world, ("127.0.0.1", "hooks.example.com"), resolve=resolve, limit_s=1.0)
    cancelled_job(world, "https://hooks.example.com/x", receiver.url)
    posts.send()
    found.set()
    assert posts.outcomes == ["delivered", "given_up"]
    assert posts.told[0].endswith("https://hooks.example.com/******** took longer than 1 s.")


@pytest.mark.parametrize("wrong", [OSError("no such host"), UnicodeError("label too long")])
def test_name_that_cannot_be_resolved_is_tried_again(world: World, wrong: Exception) -> None:
    asked: list[Any] = []

    def resolve(*name: Any) -> list[str]:
        asked.append(name)
        raise wrong

    posts = Posts(world, ("hooks.example.com",), resolve=resolve)
    cancelled_job(world, "https://hooks.example.com/x")
    posts.send()
    assert len(asked) == len(PAUSES_S) + 1
    assert posts.outcomes == ["given_up"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"webhook_hosts": ("hooks.example.com",)}, "set ADVISOR_WEBHOOK_SECRET"),
        (
            {"webhook_hosts": ("https://hooks.example.com",), "webhook_secret": SECRET},
            "no host and no network",
        ),
        ({"webhook_hosts": ("10.0.0.1/8",), "webhook_secret": SECRET}, "no host and no network"),
        ({"webhook_hosts": ("2130706433",), "webhook_secret": SECRET}, "no host and no network"),
    ],
)
def test_settings_that_would_not_do_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said) as refused:
        Settings(**settings)
    assert SECRET not in str(refused.value)


def certify(host: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What a server that is `host` shows, and what a client trusts."""
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert(host).configure_cert(server)
    authority.configure_trust(client)
    return server, client


def test_name_is_resolved_once_and_its_certificate_is_the_names(world: World) -> None:
    shown, trusted = certify("hooks.example.com")
    asked: list[tuple[str, int]] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append((host, port))
        # Whoever asked again would be led elsewhere.
        return ["127.0.0.1"] if len(asked) == 1 else ["169.254.169.254"]

    with receiving(shown) as receiver:
        hosts = ("hooks.example.com", "127.0.0.0/8")
        posts = Posts(world, hosts, resolve=resolve, tls=trusted)
        cancelled_job(world, f"https://hooks.example.com:{receiver.port}/x?y=1")
        posts.send()
        ((headers, body),) = receiver.posted
    assert asked == [("hooks.example.com", receiver.port)]
    assert headers["Host"] == f"hooks.example.com:{receiver.port}"
    verify(headers, body)


def test_receiver_with_another_names_certificate_is_told_nothing(world: World) -> None:
    shown, trusted = certify("other.example.com")
    with receiving(shown) as receiver:
        posts = Posts(
            world, ("hooks.example.com", "127.0.0.0/8"), resolve=lambda *_: ["127.0.0.1"], tls=trusted
        )
        cancelled_job(world, f"https://hooks.example.com:{receiver.port}/x")
        posts.send()
        assert receiver.posted == []
    assert posts.outcomes == ["given_up"]


def test_name_that_says_an_inner_address_is_not_connected_to(world: World) -> None:
    shown, trusted = certify("hooks.example.com")
    with receiving(shown) as receiver:
        posts = Posts(world, ("hooks.example.com",), resolve=lambda *_: ["127.0.0.1"], tls=trusted)
        cancelled_job(world, f"https://hooks.example.com:{receiver.port}/x")
        posts.send()
        assert receiver.posted == []
    assert posts.outcomes == ["given_up"]
    assert "hooks.example.com has no public address" in posts.told[0]


def test_host_that_is_listed_no_more_is_told_nothing(world: World, receiver: Receiver) -> None:
    posts = Posts(world, ())
    cancelled_job(world, receiver.url)
    posts.send()
    assert (receiver.posted, posts.outcomes) == ([], ["given_up"])
    assert "does not list the address 127.0.0.1" in posts.told[0]


def test_flood_of_notices_is_bounded(world: World) -> None:
    posts = Posts(world, ())
    cancelled_job(world, "http://127.0.0.1/x")
    posts.notices *= MOST_AT_ONCE + 3
    posts.send()
    assert posts.told.count(f"A webhook was not told: {MOST_AT_ONCE} notices waited already.") == 3


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://evil.example.com/x", "does not list evil.example.com"),
        ("http://hooks.example.com/x", "must begin with https://"),
    ],
)
def test_webhook_that_is_not_allowed_is_refused_when_the_job_comes(
    start: Callable[..., Served], url: str, said: str
) -> None:
    server = start(**OPEN)
    for query in ("", "?validate_only=true"):
        body = make_spec(webhooks=(url,)).model_dump(mode="json", context={"with_secrets": True})
        reply = server.ask("POST", f"/jobs{query}", json=body)
        assert (reply.status_code, reply.json()["code"]) == (422, "invalid_job")
        assert said in reply.json()["detail"]


def test_without_a_list_no_webhook_is_allowed(server: Served) -> None:
    body = make_spec(webhooks=("https://hooks.example.com/x",)).model_dump(
        mode="json", context={"with_secrets": True}
    )
    reply = server.ask("POST", "/jobs", json=body)
    assert reply.status_code == 422
    assert "ADVISOR_WEBHOOK_HOSTS of the server does not list hooks.example.com." in reply.json()["detail"]


def test_path_of_a_webhook_is_never_shown(start: Callable[..., Served], receiver: Receiver) -> None:
    server = start(**OPEN)
    job = server.submit(webhooks=(receiver.url,))
    hidden = f"http://127.0.0.1:{receiver.port}/********"
    assert server.ask("GET", f"/jobs/{job.id}").json()["spec"]["webhooks"] == [hidden]
    agent = FakeAgent(server, "one")
    agent.take_place()
    for path in (f"/jobs/{job.id}", "/jobs", f"/jobs/{job.id}/events"):
        assert "secret-path" not in server.ask("GET", path).text
    again = make_spec(webhooks=(hidden,)).model_dump(mode="json")
    assert "hidden value" in server.ask("POST", "/jobs", json=again).json()["detail"]


def test_clone_posts_to_nobody_elses_webhook_and_to_none_that_is_listed_no_longer(
    start: Callable[..., Served],
) -> None:
    server = start(**OPEN)
    ada, eve = server.token("submitter", label="ada"), server.token("submitter", label="eve")
    spec = make_spec(webhooks=("https://hooks.example.com/secret",)).model_dump(
        mode="json", context=WITH_SECRETS
    )
    job_id = server.ask("POST", "/jobs", ada, json=spec).json()["id"]
    assert server.ask("POST", f"/jobs/{job_id}:clone", ada).status_code == 201
    refused = server.ask("POST", f"/jobs/{job_id}:clone", eve)
    assert (refused.status_code, refused.json()["code"]) == (403, "not_your_job")
    server.stop()
    narrower = start(webhook_hosts=("127.0.0.1",), webhook_secret=SECRET)
    assert narrower.ask("POST", f"/jobs/{job_id}:clone", ada).status_code == 422
