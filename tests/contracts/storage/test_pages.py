"""What was measured for a job comes in pages that together are all of it, on SQLite and on PostgreSQL alike."""

from collections.abc import Callable
from typing import TypeVar

import pytest

from advisor.errors import InvalidRequest, JobNotFound
from advisor.protocol.pages import BlockPage, SessionPage, TrialPage
from advisor.services import measured
from advisor.storage import UnitOfWork
from tests.unit.services.scripted_tuning import ScriptedTuning
from tests.unit.services.world import World

Page = TypeVar("Page", TrialPage, BlockPage, SessionPage)
LISTS = (measured.list_trials, measured.list_blocks, measured.list_sessions)


def measure_twice(database_url: str) -> tuple[World, str]:
    """A job that two sessions measured, and another job beside it."""
    world = World(
        database_url, ScriptedTuning([{"fuse_grad_size_in_MB": float(size)} for size in range(2, 7)])
    )
    world.database.migrate()
    job_id = world.submit().id
    agent = world.register("one")
    for races in (2, 3):
        (place,) = world.start_session(agent)
        for _ in range(races):
            world.measure(place, agent)
        world.end(place, agent)
    other = world.submit().id
    world.pause(job_id)
    (place,) = world.start_session(agent)
    world.measure(place, agent)
    assert world.history(other).blocks
    return world, job_id


def read_all(
    work: UnitOfWork, look: Callable[[UnitOfWork, str, int, str | None], Page], job_id: str, limit: int
) -> list[object]:
    found: list[object] = []
    cursor: str | None = None
    while True:
        page = look(work, job_id, limit, cursor)
        assert 0 < len(page.items) <= limit
        found += page.items
        if (cursor := page.next_cursor) is None:
            return found


def test_pages_together_are_the_history(database_url: str) -> None:
    world, job_id = measure_twice(database_url)
    history = world.history(job_id)
    assert (len(history.trials), len(history.blocks), len(history.sessions)) == (5, 5, 2)
    with world.database.read() as work:
        for limit in (1, 2, 5, 100):
            assert read_all(work, measured.list_trials, job_id, limit) == list(history.trials)
            assert read_all(work, measured.list_blocks, job_id, limit) == list(history.blocks)
            assert read_all(work, measured.list_sessions, job_id, limit) == list(history.sessions)
    world.database.close()


@pytest.mark.parametrize("look", LISTS)
def test_no_job_and_no_cursor_are_told_apart(
    database_url: str, look: Callable[[UnitOfWork, str, int, str | None], object]
) -> None:
    world = World(database_url)
    world.database.migrate()
    job_id = world.submit().id
    with world.database.read() as work:
        with pytest.raises(JobNotFound):
            look(work, "nothing", 5, None)
        with pytest.raises(InvalidRequest):
            look(work, job_id, 5, "x")
    world.database.close()
