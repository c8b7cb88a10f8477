"""Who holds which agents, who did lately, and who leaves, as the scheduler asks for it; and in older databases."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, create_engine, inspect, text

from advisor.protocol.measured.trials import Outcome, Session, SessionState
from advisor.storage import Database, database
from tests.contracts.storage.test_migrations import downgrade
from tests.contracts.storage.test_storage import NOW, make_job, make_session
from tests.unit.services.scripted_tuning import make_node, make_spec

MOMENT = "2026-01-01 00:00:00.000000"


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


def store_session(connection: Connection) -> None:
    """What the release before stored of a session that is being measured."""
    node, spec = make_node("n").model_dump_json(), make_spec().model_dump_json()
    for statement, values in (
        (
            "INSERT INTO jobs (id, spec, state, stage, state_reason, owner, created_at, cluster, baseline, refusals,"
            " version, generation, events, chunks, log_chars) VALUES"
            f" ('j1', :spec, 'running', 'probe', '', 'ada', '{MOMENT}', '{{}}', '{{}}', '{{}}', 1, 1, 0, 0, 0)",
            {"spec": spec},
        ),
        (
            "INSERT INTO agents (id, name, node, registered_at, last_seen_at)"
            f" VALUES ('a1', 'one', :node, '{MOMENT}', '{MOMENT}')",
            {"node": node},
        ),
        (
            "INSERT INTO sessions (id, job_id, generation, gang, state, because, cold, reason, log_tail,"
            f" trouble_fatal, created_at, total_steps) VALUES ('s1', 'j1', 1, 0, 'running', '', '{{}}', '', '',"
            f" false, '{MOMENT}', 0)",
            {},
        ),
        (
            "INSERT INTO members (session_id, agent_id, node_rank, state, live, reason, log_tail, total_steps, samples)"
            " VALUES ('s1', 'a1', 0, 'running', true, '', '', 0, 0)",
            {},
        ),
    ):
        connection.execute(text(statement), values)


def test_session_of_the_release_before_holds_its_agents_for_as_long_as_it_likes(database_url: str) -> None:
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        database.upgrade(connection, "0011")
        store_session(connection)
    there = Database(database_url, lambda: "unused")
    there.migrate()
    with there.read() as work:
        (held,) = work.sessions.holdings(datetime(2026, 1, 2, tzinfo=UTC))
        (agent,) = work.agents.all()
        assert (held.owner, held.agents, held.limit_s, held.lent_by) == ("ada", 1, None, None)
        assert (agent.session_id, agent.ends_at, agent.node.pool) == ("s1", None, "")
    there.close()
    with engine.begin() as connection:
        downgrade(connection, "0011")
        columns = {column["name"] for column in inspect(connection).get_columns("sessions")}
        assert not columns & {"limit_s", "lent_by"}
        assert connection.execute(text("SELECT state FROM sessions")).scalars().all() == ["running"]
    engine.dispose()
