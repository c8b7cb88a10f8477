"""Tokens, agents and keys of a database that an earlier release wrote."""

from sqlalchemy import Connection, create_engine, text

from advisor.storage import Database, database
from tests.contracts.storage.test_migrations import downgrade

MOMENT = "2026-01-01 00:00:00.000000"


def store_identities(connection: Connection) -> None:
    """What release 0006 stored: three tokens, an agent, and keys of one label, of a shared one and of no one."""
    node = '{"hostname": "n", "cpu_count": 1, "memory_bytes": 1}'
    for statement in (
        f"INSERT INTO agents (id, name, node, registered_at, last_seen_at) VALUES"
        f" ('a1', 'one', '{node}', '{MOMENT}', '{MOMENT}')",
        "INSERT INTO jobs (id, spec, state, stage, state_reason, owner, created_at, cluster, baseline, refusals,"
        " version, generation, events, chunks, log_chars) VALUES"
        f" ('j1', '{{}}', 'finished', 'done', '', 'ada', '{MOMENT}', '{{}}', '{{}}', '{{}}', 1, 1, 0, 0, 0)",
        *(
            "INSERT INTO tokens (id, role, label, secret_sha256, agent_id, created_at) VALUES"
            f" ('{token}', '{role}', '{label}', 'hash', {agent}, '{MOMENT}')"
            for token, role, label, agent in (
                ("t1", "submitter", "ada", "NULL"),
                ("t2", "submitter", "bob", "NULL"),
                ("t3", "admin", "bob", "NULL"),
                ("t4", "viewer", "", "NULL"),
                ("t5", "agent", "ada", "'a1'"),
            )
        ),
        *(
            "INSERT INTO idempotency_keys (owner, key, request_sha256, job_id, created_at) VALUES"
            f" ('{owner}', 'key', 'hash', 'j1', '{MOMENT}')"
            for owner in ("ada", "bob", "viewer", "gone")
        ),
    ):
        connection.execute(text(statement))


def test_identities_of_an_earlier_release_stay_and_keys_go_to_their_token(database_url: str) -> None:
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        database.upgrade(connection, "0006")
        store_identities(connection)
    there = Database(database_url, lambda: "unused")
    there.migrate()
    with there.read() as work:
        assert work.jobs.find_submission("t1", "key") == ("j1", "hash")
        assert work.jobs.find_submission("t4", "key") == ("j1", "hash")
        assert [work.jobs.find_submission(token, "key") for token in ("t2", "t3", "t5")] == [None] * 3
        assert {
            token.id: (token.expires_at, token.uses_left, token.team) for token in work.tokens.page(9)
        } == (dict.fromkeys(("t1", "t2", "t3", "t4", "t5"), (None, None, "")))
        agent = work.agents.find("one")
        assert agent is not None
        assert (agent.secret_sha256, agent.revoked_at) == (None, None)
    there.close()
    with engine.begin() as connection:
        downgrade(connection, "0006")
        owners = connection.execute(text("SELECT owner FROM idempotency_keys ORDER BY owner")).scalars().all()
        assert owners == ["t1", "t4"]
    engine.dispose()
