"""What was measured for a job comes in pages that together are all of it, on SQLite and on PostgreSQL alike."""

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pytest
from sqlalchemy import text

from advisor.errors import InvalidRequest, JobNotFound
from advisor.protocol.measured.trials import BlockPage, SessionPage, TrialPage
from advisor.protocol.views import AgentPage, AgentView, JobQuery, NewToken, Role, TokenPage, TokenView
from advisor.services.agents import list_agents, view_agents
from advisor.services.answers import measured
from advisor.services.jobs import list_jobs
from advisor.services.timers import Timers
from advisor.services.tokens import create_token, list_tokens
from advisor.storage import Database, UnitOfWork
from tests.unit.services.scripted_tuning import ScriptedTuning, make_node
from tests.unit.services.world import World

Page = TypeVar("Page", TrialPage, BlockPage, SessionPage)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LISTS = (measured.list_trials, measured.list_blocks, measured.list_sessions)


def measure_twice(database_url: str) -> tuple[World, str]:
    """A job that two sessions measured, and another job beside it."""
    world = World(
        database_url, ScriptedTuning([{"fuse_grad_size_in_MB": float(size)} for size in range(2, 7)])
    )
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
    job_id = world.submit().id
    with world.database.read() as work:
        with pytest.raises(JobNotFound):
            look(work, "nothing", 5, None)
        with pytest.raises(InvalidRequest):
            look(work, job_id, 5, "x")
    world.database.close()


def read_pages(
    look: Callable[[str | None], AgentPage | TokenPage], limit: int
) -> list[AgentView | TokenView]:
    found: list[AgentView | TokenView] = []
    cursor: str | None = None
    while True:
        page = look(cursor)
        assert 0 < len(page.items) <= limit
        found += page.items
        if (cursor := page.next_cursor) is None:
            return found


def test_pages_of_agents_together_are_all_of_them_in_order(database: Database) -> None:
    names = ["gpü-12", "a", "Z", "node 9", "b\U0001f600", "longest" + "ü" * 93]
    with database.begin() as work:
        for number, name in enumerate(names):
            work.agents.add(f"a{number}", name, make_node("n"), NOW)
        known = [agent.name for agent in view_agents(work, NOW, Timers())]
        assert sorted(known) == sorted(names)
        for limit in (1, 2, 5, 6, 100):
            pages = read_pages(
                lambda cursor, limit=limit: list_agents(work, NOW, Timers(), limit, cursor), limit
            )
            assert [agent.name for agent in pages] == known
        (only,) = list_agents(work, NOW, Timers(), 5, None, "Z").items
        assert only.name == "Z"


def test_page_of_agents_is_as_long_as_asked_for_where_some_cannot_be_read(database: Database) -> None:
    with database.begin() as work:
        for name in ("a", "b", "c", "d"):
            work.agents.add(name, name, make_node("n"), NOW)
        work.connection.execute(text("UPDATE agents SET node = '{}' WHERE name IN ('a', 'b')"))
    with database.read() as work:
        pages = read_pages(lambda cursor: list_agents(work, NOW, Timers(), 1, cursor), 1)
        assert [agent.name for agent in pages] == ["c", "d"]


def test_pages_of_tokens_together_are_all_of_them_newest_first(database: Database) -> None:
    with database.begin() as work:
        for made in (0, 1, 1, 1, 2):
            create_token(work, NewToken(role=Role.VIEWER), NOW + timedelta(microseconds=made))
        known = list_tokens(work, 1000, None).items
        assert [token.created_at for token in known] == sorted((t.created_at for t in known), reverse=True)
        for limit in (1, 2, 4, 5):
            pages = read_pages(lambda cursor, limit=limit: list_tokens(work, limit, cursor), limit)
            assert pages == list(known)


@pytest.mark.parametrize("place", ["9" * 30, "-1", "nonsense", "2026-01-01 id", "\x00", "١"])
def test_cursor_that_no_page_gave_is_refused_wherever_it_is_sent(database: Database, place: str) -> None:
    cursor = base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")
    with database.read() as work:
        with pytest.raises(InvalidRequest, match="cursor"):
            list_tokens(work, 1, cursor)
        with pytest.raises(InvalidRequest, match="cursor"):
            list_jobs(work, JobQuery(cursor=cursor))
        # Any text may be the name that a page of agents ended with.
        assert list_agents(work, NOW, Timers(), 1, cursor).items == ()
