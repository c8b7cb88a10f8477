"""Who holds which agents, who did lately, and who leaves, as the scheduler asks for it."""

from datetime import timedelta

from advisor.protocol.measured.trials import Outcome, Session, SessionState
from advisor.storage import Database
from tests.contracts.storage.test_storage import NOW, make_job, make_session
from tests.unit.services.scripted_tuning import make_node


def hold(database: Database, session: Session, *agents: str) -> None:
    with database.begin() as work:
        if work.jobs.get(session.job_id) is None:
            work.jobs.add(make_job(session.job_id).model_copy(update={"owner": f"owner of {session.job_id}"}))
        work.sessions.add(session)
        for rank, name in enumerate(agents):
            if work.agents.find(name) is None:
                work.agents.add(name, name, make_node(name), NOW)
            work.members.add(session.id, name, rank)


def test_live_sessions_and_those_that_ended_lately_are_told_with_their_owner_and_agents(
    database: Database,
) -> None:
    live = make_session("s1", "j1").model_copy(update={"limit_s": 60.0, "lent_by": "j2"})
    hold(database, live, "one", "two")
    hold(database, make_session("s2", "j2"), "three")
    with database.begin() as work:
        work.sessions.close(
            "s2",
            1,
            SessionState.LOST,
            Outcome.LOST,
            "",
            log_tail="",
            total_steps=0,
            now=NOW + timedelta(hours=1),
        )
    with database.read() as work:
        lately = {each.session_id: each for each in work.sessions.holdings(NOW)}
        now = [each.session_id for each in work.sessions.holdings(NOW + timedelta(hours=1))]
        assert work.sessions.get("s1") == live.model_copy(update={"agents": ("one", "two")})
    assert now == ["s1"]
    assert (lately["s1"].owner, lately["s1"].agents, lately["s1"].ended_at) == ("owner of j1", 2, None)
    assert (lately["s1"].limit_s, lately["s1"].lent_by, lately["s1"].is_ending) == (60.0, "j2", False)
    assert (lately["s2"].agents, lately["s2"].ended_at) == (1, NOW + timedelta(hours=1))


def test_sessions_of_agents_that_leave_soon_are_found_until_they_are_asked_to_end(database: Database) -> None:
    hold(database, make_session("s1", "j1"), "one", "two")
    with database.begin() as work:
        work.agents.introduce_again("two", make_node("two"), NOW, None, NOW + timedelta(hours=1))
        assert work.agents.leaving(NOW + timedelta(hours=1)) == {}
        assert work.agents.leaving(NOW + timedelta(hours=2)) == {"s1": "two"}
        work.sessions.end("s1", 1, None, "It leaves.")
        assert work.agents.leaving(NOW + timedelta(hours=2)) == {}
