"""Whose agents leave, as the scheduler asks for it."""

from datetime import timedelta

from advisor.storage import Database
from tests.contracts.storage.test_storage import NOW, make_job, make_session
from tests.unit.services.scripted_tuning import make_node


def test_sessions_of_agents_that_leave_soon_are_found_until_they_are_asked_to_end(database: Database) -> None:
    with database.begin() as work:
        work.jobs.add(make_job("j1"))
        work.sessions.add(make_session("s1", "j1"))
        for rank, name in enumerate(("one", "two")):
            work.agents.add(name, name, make_node(name), NOW)
            work.members.add("s1", name, rank)
    with database.begin() as work:
        work.agents.introduce_again("two", make_node("two"), NOW, None, NOW + timedelta(hours=1))
        assert work.agents.leaving(NOW + timedelta(hours=1)) == {}
        assert work.agents.leaving(NOW + timedelta(hours=2)) == {"s1": "two"}
        work.sessions.end("s1", 1, None, "It leaves.")
        assert work.agents.leaving(NOW + timedelta(hours=2)) == {}
