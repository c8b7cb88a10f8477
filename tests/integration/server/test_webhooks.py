"""Notices over real HTTP: what a receiver is told, how it knows who says it, and whom nothing is posted to."""

import hashlib
import hmac
import itertools
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from pydantic import ValidationError

from advisor.protocol.asked.jobs import JobState
from advisor.protocol.measured.runs import RunReport
from advisor.protocol.training.workload import WITH_SECRETS
from advisor.services.answers import runs
from advisor.services.webhooks.courier import FIRST_PAUSE_S, LONGEST_WAIT, Courier
from advisor.services.webhooks.posting import Fate, Poster
from advisor.services.webhooks.receivers import Receivers
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


class Post:
    """A courier of that world, one round at a time."""

    def __init__(self, world: World, hosts: tuple[str, ...] = ("127.0.0.1",), **more: Any) -> None:
        self.world = world
        self.fates: list[str] = []
        poster = Poster(Receivers.of(hosts), SECRET, **more)
        self.courier = Courier(
            world.database,
            poster,
            lambda: world.now,
            threading.Event(),
            self.fates.append,
            draw=lambda: 1.0,
        )

    def events(self, job_id: str) -> list[str]:
        with self.world.database.read() as work:
            return [event.sentence for event in work.events.after(job_id, 0, 100)]

    @property
    def waiting(self) -> int:
        with self.world.database.read() as work:
            return work.counts.take(self.world.now).webhooks


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
    post = Post(world)
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
    while post.courier.deliver_due():
        pass
    first, below, back = receiver.bodies
    assert (first["event"], first["verdict"]) == ("finished", "keep")
    assert first["sentence"] == world.job(finished.id).state_reason
    assert (below["event"], below["host"], below["samples_per_s"]) == ("below", "gpu7", 300.0)
    assert (back["event"], back["sentence"]) == ("recovered", "It is recovered.")
    assert len({notice["id"] for notice in receiver.bodies}) == 3
    assert post.waiting == 0


def test_failed_job_is_told(world: World, receiver: Receiver) -> None:
    world.tuning = FailingTuning()
    job = world.submit(webhooks=(receiver.url,))
    world.register("a")
    world.keep_up()
    assert world.job(job.id).state is JobState.FAILED
    Post(world).courier.deliver_due()
    assert [(n["event"], n["sentence"]) for n in receiver.bodies] == [("failed", "Nothing fits.")]


def test_notice_is_tried_again_with_the_same_id_until_it_is_taken(world: World, receiver: Receiver) -> None:
    receiver.answers += [500, 429, 503]
    post = Post(world)
    cancelled_job(world, receiver.url)
    for number in range(4):
        assert post.courier.deliver_due() == 1
        assert post.courier.deliver_due() == 0, "not before its pause is over"
        world.wait(FIRST_PAUSE_S * 2**number)
    assert post.courier.deliver_due() == 0
    assert post.fates == [*[Fate.POSTPONED] * 3, Fate.DELIVERED]
    assert len({headers["X-Advisor-Event-Id"] for headers, _ in receiver.posted}) == 1
    assert len({body for _, body in receiver.posted}) == 1
    assert post.waiting == 0


def test_notice_that_was_posted_when_the_server_died_is_posted_again(
    world: World, receiver: Receiver
) -> None:
    cancelled_job(world, receiver.url)
    dying = Post(world)
    dying.courier._settle = lambda *_: None  # type: ignore[method-assign]
    dying.courier.deliver_due()
    after = Post(world)
    assert after.courier.deliver_due() == 0, "another server that is posting it now would be disturbed"
    world.wait(120)
    assert after.courier.deliver_due() == 1
    assert len(receiver.posted) == 2
    assert receiver.bodies[0]["id"] == receiver.bodies[1]["id"]


def test_notice_that_nobody_takes_for_a_day_is_given_up_and_the_job_says_so(
    world: World, receiver: Receiver
) -> None:
    receiver.answers += [500] * 100
    post = Post(world)
    job_id = cancelled_job(world, receiver.url)
    for _ in itertools.takewhile(lambda _: post.waiting, range(100)):
        post.courier.deliver_due()
        world.wait(1800)
    assert post.fates[-1] == Fate.POSTPONED
    assert timedelta(seconds=1800 * len(receiver.posted)) < LONGEST_WAIT
    told = post.events(job_id)[-1]
    assert told == f"A webhook was not told: http://127.0.0.1:{receiver.port}/******** answered 500."


@pytest.mark.parametrize("status", [301, 302, 307, 400, 401, 404, 410])
def test_refusal_and_redirect_are_final_and_nobody_is_followed(
    world: World, receiver: Receiver, status: int
) -> None:
    with receiving() as elsewhere:
        receiver.answers += [status]
        receiver.location = elsewhere.url
        post = Post(world)
        job_id = cancelled_job(world, receiver.url)
        post.courier.deliver_due()
        assert post.fates == [Fate.GIVEN_UP]
        assert elsewhere.posted == []
    assert post.waiting == 0
    assert f"answered {status}." in post.events(job_id)[-1]
    assert "secret-path" not in "".join(post.events(job_id))


def test_receiver_that_does_not_answer_holds_up_nobody_else(world: World, receiver: Receiver) -> None:
    with receiving() as stuck:
        stuck.hold = threading.Event()
        post = Post(world, limit_s=1.0)
        cancelled_job(world, stuck.url, receiver.url)
        cancelled_job(world, stuck.url)
        post.courier.deliver_due()
    assert len(receiver.posted) == 1
    assert len(stuck.posted) == 1, "after a host has failed it is left alone for this round"
    assert sorted(post.fates) == [Fate.DELIVERED, Fate.POSTPONED, Fate.POSTPONED]


def test_requests_and_keeper_go_on_while_a_receiver_does_not_answer(
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
    server = start(**OPEN, look_s=5)
    first, last = (server.submit(webhooks=(receiver.url,)) for _ in range(2))
    server.ask("POST", f"/jobs/{first.id}:cancel")
    wait_for(lambda: receiver.posted or None, "the notice")
    server.ask("POST", f"/jobs/{last.id}:cancel")
    # After so long a round the courier rests longer than the server still lives.
    time.sleep(0.5)
    receiver.hold.set()
    server.stop()
    assert [notice["job_id"] for notice in receiver.bodies] == [first.id, last.id]


def test_name_that_takes_for_ever_to_resolve_costs_its_try_only(world: World, receiver: Receiver) -> None:
    found = threading.Event()

    def resolve(host: str, _: int) -> list[str]:
        if host != "127.0.0.1":
            found.wait(60)
        return ["127.0.0.1"]

    post = Post(world, ("127.0.0.1", "hooks.example.com"), resolve=resolve, limit_s=1.5)
    job_id = cancelled_job(world, "https://hooks.example.com/x", receiver.url)
    began_s = time.monotonic()
    post.courier.deliver_due()
    assert time.monotonic() - began_s < 30
    found.set()
    assert sorted(post.fates) == [Fate.DELIVERED, Fate.POSTPONED]
    assert len(post.events(job_id)) == 2, "nothing was given up"


@pytest.mark.parametrize("wrong", [OSError("no such host"), UnicodeError("label too long")])
def test_name_that_cannot_be_resolved_is_tried_again(world: World, wrong: Exception) -> None:
    def resolve(*_: Any) -> list[str]:
        raise wrong

    post = Post(world, ("hooks.example.com",), resolve=resolve)
    cancelled_job(world, "https://hooks.example.com/x")
    post.courier.deliver_due()
    assert post.fates == [Fate.POSTPONED]


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
        post = Post(world, hosts, resolve=resolve, tls=trusted)
        cancelled_job(world, f"https://hooks.example.com:{receiver.port}/x?y=1")
        post.courier.deliver_due()
        ((headers, body),) = receiver.posted
    assert asked == [("hooks.example.com", receiver.port)]
    assert headers["Host"] == f"hooks.example.com:{receiver.port}"
    verify(headers, body)


def test_receiver_with_another_names_certificate_is_told_nothing(world: World) -> None:
    shown, trusted = certify("other.example.com")
    with receiving(shown) as receiver:
        post = Post(
            world, ("hooks.example.com", "127.0.0.0/8"), resolve=lambda *_: ["127.0.0.1"], tls=trusted
        )
        cancelled_job(world, f"https://hooks.example.com:{receiver.port}/x")
        post.courier.deliver_due()
        assert receiver.posted == []
    assert post.fates == [Fate.POSTPONED]


def test_name_that_says_an_inner_address_is_not_connected_to(world: World) -> None:
    shown, trusted = certify("hooks.example.com")
    with receiving(shown) as receiver:
        post = Post(world, ("hooks.example.com",), resolve=lambda *_: ["127.0.0.1"], tls=trusted)
        job_id = cancelled_job(world, f"https://hooks.example.com:{receiver.port}/x")
        post.courier.deliver_due()
        assert receiver.posted == []
    assert post.fates == [Fate.GIVEN_UP]
    assert "hooks.example.com has no public address" in post.events(job_id)[-1]


def test_host_that_is_listed_no_more_is_told_nothing(world: World, receiver: Receiver) -> None:
    post = Post(world, ())
    job_id = cancelled_job(world, receiver.url)
    post.courier.deliver_due()
    assert (receiver.posted, post.fates) == ([], [Fate.GIVEN_UP])
    assert "does not list the address 127.0.0.1" in post.events(job_id)[-1]


def test_of_a_flood_the_latest_notices_wait(world: World, receiver: Receiver) -> None:
    job = world.submit(webhooks=(receiver.url,))
    for step in range(120):
        with world.work() as work:
            said = RunReport(host="a", ranks=1, step=step, step_s=1, samples_per_s=1, event="below")
            runs.report_run(work, job.id, "0123456789abcdef", said, ADA, world.now)
        world.wait(0.001)
    post = Post(world)
    assert post.waiting == 100
    post.courier.deliver_due()
    assert receiver.bodies[0]["step"] == 20


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


def test_clock_that_is_set_neither_gives_notices_up_nor_holds_them_back(
    world: World, receiver: Receiver
) -> None:
    receiver.answers += [500] * 2
    post = Post(world)
    cancelled_job(world, receiver.url)
    post.courier.deliver_due()
    world.wait(2 * 86_400)
    post.courier.deliver_due()
    assert post.waiting == 1, "two tries are not given up, whatever the clock says"
    world.wait(-3 * 86_400)
    post.courier.deliver_due()
    assert (post.waiting, post.fates[-1]) == (0, Fate.DELIVERED)
