"""Whoever follows a job is told each event once, in order, and hears of the end of the job and of the token."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from advisor.protocol.asked.jobs import JobState
from advisor.protocol.views import EventKind, Role
from advisor.services.following import PAGE, Follower, follow
from advisor.services.jobs import submit_job
from advisor.services.tokens import Principal
from advisor.storage import Database, UnitOfWork
from tests.unit.services.scripted_tuning import make_spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)


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


async def read_all(follower: Follower) -> list[int]:
    """The numbers of all events that there are now."""
    seen: list[int] = []
    while told := await follower.take():
        assert len(told) <= PAGE
        seen += [event.seq for event in told]
    assert told == []
    return seen


@pytest.mark.parametrize("events", [10, 3 * PAGE])
def test_each_event_is_told_once_to_whoever_comes_and_the_end_of_the_job_as_well(
    database: Database, events: int
) -> None:
    job_id, principal = make_job(database, events)

    async def check() -> None:
        place = database, lambda: NOW, job_id, principal
        with follow(*place, 0) as old, follow(*place, events - 5) as new, follow(*place, 10**9) as forged:
            whole = await read_all(old)
            assert whole == list(range(1, len(whole) + 1))
            assert await read_all(new) == whole[events - 5 :]
            assert await read_all(forged) == []
            waiting = [asyncio.create_task(follower.wait(3600)) for follower in (old, new, forged)]
            await asyncio.sleep(0)
            await asyncio.to_thread(tell, database, job_id, PAGE + 2)
            await asyncio.gather(*waiting)
            for follower in (old, new, forged):
                assert await read_all(follower) == [whole[-1] + 1 + number for number in range(PAGE + 2)]
                assert not follower.is_over
            with database.begin() as work:
                work.jobs.move(job_id, JobState.CANCELLED, "Enough.", since=(JobState.QUEUED,), now=NOW)
                work.events.append(job_id, EventKind.JOB, "The job was cancelled.", NOW)
            await new.wait(3600)
            assert len(await read_all(new)) == 1
            assert new.is_over

    asyncio.run(check())


def test_stream_ends_with_its_token_and_costs_nothing_while_nothing_happens(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, principal = make_job(database, 3)
    read, looks = database.read, 0

    @contextmanager
    def counted() -> Iterator[UnitOfWork]:
        nonlocal looks
        looks += 1
        with read() as work:
            yield work

    monkeypatch.setattr(database, "read", counted)
    now = NOW
    short = replace(principal, expires_at=NOW + timedelta(seconds=5))

    async def check() -> None:
        nonlocal now
        place = database, lambda: now, job_id
        with follow(*place, principal, 0) as follower, follow(*place, short, 0) as shorter:
            await read_all(follower)
            await read_all(shorter)
            before = looks
            assert await follower.take() == await shorter.take() == []
            assert looks == before
            now += timedelta(seconds=6)
            assert await shorter.take() is None
            with database.begin() as work:
                work.tokens.revoke("1", now)
            assert await follower.take() is None

    asyncio.run(check())
