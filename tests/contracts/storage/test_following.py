"""Whoever follows a job, and however many: one look for all, each event once to each, in order."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from advisor.api.stories import write_event
from advisor.protocol.asked.jobs import JobState
from advisor.protocol.views import EventKind, Role
from advisor.services.following import PAGE, Follower, Stories
from advisor.services.jobs import submit_job
from advisor.services.tokens import Principal
from advisor.storage import Database, UnitOfWork
from tests.unit.services.scripted_tuning import make_spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WATCHERS = 64


class Looked:
    """Counts the looks at a database."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        read = database.read

        @contextmanager
        def counted() -> Iterator[UnitOfWork]:
            self.count += 1
            with read() as work:
                yield work

        monkeypatch.setattr(database, "read", counted)


@pytest.fixture
def looked(database: Database, monkeypatch: pytest.MonkeyPatch) -> Looked:
    return Looked(database, monkeypatch)


def make_job(database: Database, events: int) -> tuple[str, Principal]:
    principal = Principal("1", Role.ADMIN, "an admin")
    with database.begin() as work:
        work.tokens.add("1", Role.ADMIN, "", "hash", NOW, None)
        job_id = submit_job(work, make_spec(), principal, None, NOW).id
    tell(database, job_id, events)
    return job_id, principal


def tell(database: Database, job_id: str, count: int) -> None:
    with database.begin() as work:
        for number in range(count):
            work.events.append(job_id, EventKind.TRIAL, f"Trial {number}.", NOW)


async def read_all(follower: Follower) -> list[bytes]:
    """Everything that there is now."""
    lines: list[bytes] = []
    while told := await follower.take():
        assert len(told) <= PAGE
        lines += [one.line for one in told]
    return lines


def follow(database: Database, check: Callable[[Stories], object]) -> None:
    stories = Stories(database, lambda: NOW, write_event, tick_s=3600)
    asyncio.run(check(stories))  # type: ignore[arg-type]
    assert not stories._stories


def test_many_who_follow_cost_hardly_more_than_one(database: Database, looked: Looked) -> None:
    job_id, principal = make_job(database, 3 * PAGE)

    async def check(stories: Stories) -> None:
        places = [stories.follow(job_id, principal, 0) for _ in range(WATCHERS)]
        followers = [place.__enter__() for place in places]
        assert all(await asyncio.gather(*(follower.counts() for follower in followers)))
        found = await asyncio.gather(*(read_all(follower) for follower in followers))
        with database.begin() as work:
            total = work.events.newest(job_id)
        assert {len(lines) for lines in found} == {total}
        assert found.count(found[0]) == WATCHERS
        assert looked.count < WATCHERS / 2, "of pages and tokens, not of watchers"
        before = looked.count
        for follower in followers:
            assert await follower.take() == []
        assert looked.count == before, "nothing is due"
        waiting = [asyncio.create_task(follower.wait(3600)) for follower in followers]
        await asyncio.sleep(0)
        await asyncio.to_thread(tell, database, job_id, 2)
        stories._stories[job_id].ring()  # as the notifier does where other servers share it
        await asyncio.gather(*waiting)
        news = await asyncio.gather(*(read_all(follower) for follower in followers))
        assert {len(lines) for lines in news} == {2}
        assert looked.count - before < 5
        for place in places:
            place.__exit__(None, None, None)

    follow(database, check)


@pytest.mark.parametrize("events", [10, 3 * PAGE, 6 * PAGE])
def test_who_comes_later_and_from_further_back_is_told_all_the_same(database: Database, events: int) -> None:
    """More than is kept in memory as well, and one who names a number that nothing has yet."""
    job_id, principal = make_job(database, events)

    async def check(stories: Stories) -> None:
        with (
            stories.follow(job_id, principal, 10**9) as forged,
            stories.follow(job_id, principal, events - 5) as new,
        ):
            assert await read_all(forged) == []
            recent = await read_all(new)
            with stories.follow(job_id, principal, 0) as old:
                whole = await read_all(old)
                assert whole[-len(recent) :] == recent
                assert len(whole) == len(recent) + events - 5
                assert len(set(whole)) == len(whole)
            with database.begin() as work:
                work.jobs.move(job_id, JobState.CANCELLED, "Enough.", since=(JobState.QUEUED,), now=NOW)
                work.events.append(job_id, EventKind.JOB, "The job was cancelled.", NOW)
            stories._stories[job_id].ring()
            assert len(await read_all(new)) == 1
            assert new.is_over
            assert await read_all(forged) == []
            assert forged.is_over

    follow(database, check)
