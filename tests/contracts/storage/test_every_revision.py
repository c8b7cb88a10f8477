"""A database of any revision, with rows in every table and in every column, is brought up to date and loses nothing.

The rows are those that a release kept, in the form that they had at the revision, and one more in each table that
has something in every column: the table's own description tells which columns there are, so that a later migration
is tried with all that there was before it.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    DateTime,
    Float,
    Integer,
    Table,
    UniqueConstraint,
    select,
    text,
)

from advisor.protocol.asked.queries import JobQuery
from advisor.protocol.measured.runs import ProductionRun, RunPoint
from advisor.protocol.measured.telemetry import FlagKind, NodeFlag
from advisor.protocol.measured.trials import EarlierJob, EarlierLaunches
from advisor.protocol.views import EventFacts, Straggler
from advisor.storage import Database, UnitOfWork, database
from advisor.storage.columns import Document
from advisor.storage.tables import Base
from tests.contracts.kept_rows import (
    RECORDED,
    Kept,
    Rows,
    connect,
    insert_rows,
    read_kept,
    read_rows,
    reflect,
)
from tests.contracts.storage.forms import describe
from tests.unit.services.scripted_tuning import make_result

REVISIONS = sorted(
    path.name.partition("_")[0]
    for path in (Path(database.__file__).parent / "migrations/versions").glob("[0-9]*.py")
)
MOMENT = datetime(2026, 1, 1, 12, 30, 0, 123456, tzinfo=UTC)
SERIAL = 1001
"""Of the first row that the release did not keep."""
RENAMED = {("blocks", "round"): "race", ("idempotency_keys", "owner"): "token_id"}
"""Columns that have another name today."""
DROPPED = {("members", "lease_until"), ("sessions", "due_at"), ("members", "steps")}
"""Columns that a migration takes away."""
ONE_ROW = {"pulse", "leader"}
"""Tables that never hold more than one row."""
CHOSEN: dict[tuple[str, str], Any] = {
    ("jobs", "state"): "cancelled",
    ("sessions", "state"): "ended",
    ("members", "state"): "gone",
    ("blocks", "state"): "done",
    ("blocks", "ordinal"): 0,
    ("trials", "state"): "closed",
    ("tokens", "role"): "agent",
    ("tokens", "label"): "an agent's",
}
"""Words of a fixed list, and what fits together by rules that no table knows (`storage/whole/invariants.py`)."""
DOCUMENTS: dict[tuple[str, str], Any] = {
    ("agents", "flag"): NodeFlag(agent="one", kind=FlagKind.STRAGGLER, sentence="It is late.", rank=1),
    ("jobs", "earlier"): (
        EarlierJob(job_id="j0", changes={"nccl_comm_num": 2}, ratio=1.1, likeness=0.9, because="Much alike."),
    ),
    ("jobs", "earlier_launches"): (EarlierLaunches(job_id="j0", ratios=((0.1, 0.01), (0.12, 0.01))),),
    ("jobs", "continued_at"): (MOMENT,),
    ("quarantine", "body"): make_result(),
    ("events", "facts"): EventFacts(smallest_gain=0.02, straggler=Straggler(agent="one", rank=1)),
    ("runs", "body"): ProductionRun(
        id="r1", host="one", ranks=2, began_at=MOMENT, reported_at=MOMENT, step=9, samples_per_s=8.0, low=7.0,
        recent=(RunPoint(at=MOMENT, step=9, samples_per_s=8.0),),
    ),
}  # fmt: skip
"""Of columns in which the release kept none."""


@pytest.fixture(scope="session")
def kept() -> Kept:
    """What the latest recorded release kept."""
    return read_kept(RECORDED[-1])


@pytest.fixture(scope="session")
def fresh_forms() -> dict[str, Any]:
    """The form of today's tables, of each kind of database that was asked for it."""
    return {}


@pytest.fixture
def fresh_form(
    database_url: str, request: pytest.FixtureRequest, fresh_forms: dict[str, Any]
) -> dict[str, Any]:
    """The form of today's tables, made at once from the models."""
    kind = database_url.partition(":")[0]
    if kind not in fresh_forms:
        url = "sqlite://"
        if kind == "postgresql":
            server = request.getfixturevalue("postgres_server")
            server.psql("CREATE DATABASE made_at_once")
            url = server.get_uri(database="made_at_once")
        with connect(url) as connection:
            Base.metadata.create_all(connection)
            fresh_forms[kind] = describe(connection)
    return fresh_forms[kind]


def today(table: str, column: str) -> str:
    """Today's name of a column."""
    return RENAMED.get((table, column), column)


def fill(connection: Connection, revision: str, kept: Kept) -> None:
    """Store what the release would have kept at a revision, and one row more in each table."""
    tables, rows, full = reflect(connection), dict[str, list[dict[str, Any]]](), dict[str, dict[str, Any]]()
    for table in tables.sorted_tables:
        recorded = kept.rows.get(table.name, [])
        rows[table.name] = [write_as_then(table, row, revision, kept) for row in recorded]
        if table.name not in ONE_ROW or not recorded:
            full[table.name] = fill_columns(table, full, recorded)
            rows[table.name].append(full[table.name])
    if revision < "0004":
        # A session measured one block at a time.
        rows["blocks"] = [
            row
            for row, recorded in zip(rows["blocks"], [*kept.rows["blocks"], {"arm": 0}], strict=True)
            if row["state"] != "issued" or not recorded["arm"]
        ]
    states = ("queued", "failed", *(["paused"] if revision >= "0010" else []))
    for serial, state in enumerate(states, SERIAL + 1):
        own = {"serial": serial, "id": f"a {state} one", "state": state, "generation": 0, "events": 0}
        rows["jobs"].append(full["jobs"] | own)
    insert_rows(connection, rows)


def write_as_then(table: Table, row: dict[str, Any], revision: str, kept: Kept) -> dict[str, Any]:
    """One row that the release kept, as it was written at a revision."""
    written = {}
    for column in table.columns:
        name = today(table.name, column.name)
        if name in row:
            written[column.name] = row[name]
        elif not column.nullable and column.server_default is None:
            written[column.name] = make_up(column)
    if revision < "0007" and table.name == "idempotency_keys":
        labels = {token["id"]: token["label"] for token in kept.rows["tokens"]}
        written["owner"] = labels[written["owner"]]
    if revision < "0004" and table.name == "blocks":
        plan = json.loads(written["plan"])
        rules = plan.pop("rules")
        old = ("warmup_steps", "min_steps", "max_steps", "target_s", "profile_steps")
        written["plan"] = json.dumps(plan | {name: rules[name] for name in old})
    if revision < "0004" and table.name == "results":
        body = json.loads(written["body"])
        newer = {"segments", "given_up", "same_as", "drifted"}
        written["body"] = json.dumps({name: value for name, value in body.items() if name not in newer})
    return written


def fill_columns(
    table: Table, full: dict[str, dict[str, Any]], recorded: list[dict[str, Any]]
) -> dict[str, Any]:
    """A row with something in every column; what it refers to are the rows of its kind."""
    unique = {column.name for column in table.primary_key}
    for constraint in table.constraints:
        if isinstance(constraint, UniqueConstraint):
            unique |= {column.name for column in constraint.columns}
    made: dict[str, Any] = {}
    for column in table.columns:
        place = (table.name, today(table.name, column.name))
        known = [row[place[1]] for row in recorded if row.get(place[1]) is not None]
        if column.name == "serial":
            made[column.name] = SERIAL
        elif column.foreign_keys:
            (key,) = column.foreign_keys
            made[column.name] = full[key.column.table.name][key.column.name]
        elif place in CHOSEN:
            made[column.name] = CHOSEN[place]
        elif (kind := find_document(*place)) is not None and (place in DOCUMENTS or not known):
            made[column.name] = TypeAdapter(kind).dump_json(DOCUMENTS[place]).decode()
        elif isinstance(known[0] if known else None, str) and column.name not in unique:
            made[column.name] = known[0]
        else:
            made[column.name] = make_up(column)
    return made


def find_document(table: str, column: str) -> Any:
    """What a column's JSON is read as; None for one that holds none."""
    known = Base.metadata.tables[table].columns.get(column)
    return known.type.kind if known is not None and isinstance(known.type, Document) else None


def make_up(column: Column[Any]) -> Any:
    """A value that fits a column's type."""
    if isinstance(column.type, DateTime):
        return MOMENT
    if isinstance(column.type, Boolean):
        return False
    if isinstance(column.type, Integer | Float):
        return 1
    return f"some {column.table.name}.{column.name}"


def expect(before: Rows, revision: str) -> Rows:
    """What of a database's rows is there after all migrations, under today's names."""
    named = [
        (token["label"] or token["role"], token["id"]) for token in before["tokens"] if not token["agent_id"]
    ]
    labels, tokens = [label for label, _ in named], dict(named)
    expected = {
        table: [
            {today(table, name): value for name, value in row.items() if (table, name) not in DROPPED}
            for row in rows
        ]
        for table, rows in before.items()
    }
    if revision < "0007":
        # Keys went from the label of a token to its id; those of no token, and of several, were given up.
        keys = expected["idempotency_keys"]
        expected["idempotency_keys"] = [
            key | {"token_id": tokens[key["token_id"]]} for key in keys if labels.count(key["token_id"]) == 1
        ]
        assert 0 < len(expected["idempotency_keys"]) < len(keys)
    return expected


@pytest.mark.parametrize("revision", REVISIONS)
def test_database_of_every_revision_is_brought_up_to_date_with_all_that_it_holds(
    database_url: str,
    revision: str,
    kept: Kept,
    fresh_form: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with connect(database_url) as connection:
        database.upgrade(connection, revision)
        fill(connection, revision, kept)
        before = read_rows(connection)
        empty = [
            f"{table}.{column}"
            for table, rows in before.items()
            for column in rows[0]
            if all(row[column] is None for row in rows)
        ]
    assert not [table for table, rows in before.items() if not rows]
    assert not empty
    there = Database(database_url, lambda: "unused")
    there.migrate()
    with connect(database_url) as connection:
        after = read_rows(connection)
        form = describe(connection)
        if there.is_sqlite:
            assert connection.execute(text("PRAGMA foreign_key_check")).all() == []
    assert {name: form[name] for name in fresh_form if name != "indexes"} == {
        name: fresh_form[name] for name in fresh_form if name != "indexes"
    }
    assert [index for index in form["indexes"] if database.VERSION_TABLE not in index] == fresh_form[
        "indexes"
    ]
    for table, rows in expect(before, revision).items():
        shared = [{name: row[name] for name in rows[0]} for row in after[table]]
        assert sorted(shared, key=str) == sorted(rows, key=str), table
    if revision < "0010":
        assert {job["name"] for job in after["jobs"]} == {"recorded"}
    with there.read() as work:
        read_everything(work, after)
        assert work.upkeep.find_damage() == []
    there.close()
    assert not [record.message for record in caplog.records if "is left out" in record.message]


def read_everything(work: UnitOfWork, stored: Rows) -> None:
    """Read every row, as the tables describe it and as the repositories give it out."""
    for mapper in Base.registry.mappers:
        table = mapper.class_.__table__
        assert len(work.connection.execute(select(table)).all()) == len(stored[table.name])
    jobs = [job["id"] for job in stored["jobs"]]
    sessions = [session["id"] for session in stored["sessions"]]
    assert len(work.jobs.page(JobQuery(archived=True), 1000, None)) == len(jobs)
    assert len([job for job in stored["jobs"] if job.get("earlier_launches")]) == len(
        [job for job in jobs if work.jobs.earlier_launches(job)]
    )
    assert len([job for job in stored["jobs"] if job.get("earlier")]) == len(
        [job for job in jobs if work.jobs.earlier(job) is not None]
    )
    read = {
        "jobs": [work.jobs.get(job) for job in jobs],
        "sessions": [one for job in jobs for one in work.sessions.of_job(job)],
        "members": [one for session in sessions for one in work.members.of_session(session)],
        "trials": [one for job in jobs for one in work.trials.of_job(job)],
        "blocks": [one for job in jobs for one in work.blocks.of_job(job)],
        "results": [one for job in jobs for one in work.blocks.of_job(job) if one.result],
        "quarantine": [
            why for one in stored["quarantine"] for why in work.blocks.quarantined(one["block_id"])
        ],
        "events": [one for job in jobs for one in work.events.after(job, 0, 1000)],
        "log_chunks": [one for job in jobs for one in work.logs.after(job, 0, 1000)],
        "telemetry": [one for session in sessions for one in work.telemetry.of_session(session, 1000)],
        "advice": [one for job in jobs if (one := work.advice.get(job))],
        "runs": [one for job in jobs for one in work.runs.of_job(job)],
        "agents": [one for _, one in work.agents.page(1000, None)],
        "tokens": work.tokens.page(1000),
        "visits": [work.visits.find(one["key_sha256"]) for one in stored["visits"]],
        "idempotency_keys": [
            work.jobs.find_submission(one["token_id"], one["key"]) for one in stored["idempotency_keys"]
        ],
    }
    # Who was removed is listed no more.
    listed = {**stored, "agents": [one for one in stored["agents"] if one.get("removed_at") is None]}
    assert {table: len([one for one in found if one is not None]) for table, found in read.items()} == {
        table: len(listed[table]) for table in read
    }
