"""Statements that are prepared give what SQLAlchemy gives, on SQLite and on PostgreSQL."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from advisor.errors import LostRace
from advisor.protocol.measured.messages import MemberState
from advisor.protocol.measured.telemetry import TelemetrySample
from advisor.protocol.measured.trials import BlockSummary, Purpose, SessionState, Trial
from advisor.protocol.views import EventKind
from advisor.storage import Database
from advisor.storage.prepared import Prepared
from advisor.storage.repositories import blocks, members, records, sessions, trials
from tests.contracts.storage.test_storage import NOW, make_block, make_job, make_session
from tests.unit.services.scripted_tuning import make_node, make_result

KEYS = {"session": "s1", "job": "j1", "agent": "a1", "block": "b1", "trial": 0, "start": 0.0, "end": 9.0}
READING = {
    "session": sessions._GET, "agents": sessions._AGENTS_OF, "seat": members._SEAT,
    "member": members._GET, "arms": blocks._ARMS, "samples": records._BETWEEN, "trial": trials._GET,
}  # fmt: skip


def test_every_statement_that_reads_is_compared() -> None:
    found = {
        id(one)
        for module in (blocks, members, records, sessions, trials)
        for one in vars(module).values()
        if isinstance(one, Prepared) and one._statement.is_select
    }
    assert found == {id(one) for one in READING.values()}


@pytest.fixture
def filled(database: Database) -> Iterator[Database]:
    """A database in which each of these statements finds something."""
    with database.begin() as work:
        work.jobs.add(make_job())
        work.agents.add("a1", "one", make_node("one"), NOW)
        work.sessions.add(
            make_session().model_copy(update={"state": SessionState.RUNNING, "started_at": NOW})
        )
        work.members.add("s1", "a1", 0)
        work.trials.add("j1", Trial(number=0, purpose=Purpose.BASELINE, because="It is.", created_at=NOW))
        work.blocks.issue("j1", make_block())
        sample = TelemetrySample(age_s=0.0, cpu=0.5, session_cpu=0.4, memory_bytes=1)
        work.telemetry.add("s1", "a1", [(1.5, sample)])
    return database


@pytest.mark.parametrize("name", READING)
def test_rows_are_those_of_the_library(filled: Database, name: str) -> None:
    with filled.read() as work:
        theirs: Any = work.connection.execute(READING[name]._statement, KEYS)
        rows = theirs.all()
        ours = READING[name].all(work.connection, KEYS)
        assert [tuple(row) for row in ours] == [tuple(row) for row in rows]
        assert rows
        assert all(getattr(ours[0], column) == getattr(rows[0], column) for column in theirs.keys())  # noqa: SIM118
        nobody = dict.fromkeys(KEYS, "none") | {"trial": 7, "start": 20.0, "end": 21.0}
        assert READING[name].all(work.connection, nobody) == []


def test_what_is_written_is_read_again(filled: Database) -> None:
    result, later = make_result(0.1), NOW + timedelta(seconds=5)
    summary = BlockSummary(samples_per_s=1.0, log_step_time=0.0, log_step_time_se=0.1, steady_steps=5, steady=True,
                           median_step_time_s=0.1, p95_step_time_s=0.2)  # fmt: skip
    with filled.begin() as work:
        assert not work.blocks.accept(make_block(), 2, result, summary, "sha", later)
        assert work.blocks.accept(make_block(), 1, result, summary, "sha", later)
        assert not work.blocks.accept(make_block(), 1, result, summary, "sha", later)
        work.events.append("j1", EventKind.JOB, "First.", NOW, session_id="s1")
        work.events.append("j1", EventKind.JOB, "Nul: \x00.", NOW, trial_number=0)
    with filled.read() as work:
        block = work.blocks.get("b1")
        assert block is not None
        assert (block.result, block.summary, block.finished_at) == (result, summary, later)
        told = [(event.seq, event.sentence, event.at) for event in work.events.after("j1", 0, 9)]
        assert told == [(1, "First.", NOW), (2, "Nul: \ufffd.", NOW)]


def test_what_an_index_refuses_is_a_lost_race(filled: Database) -> None:
    row = {
        "block_id": "b1",
        "generation": 1,
        "payload_sha256": "sha",
        "body": make_result(0.1),
        "accepted_at": NOW,
    }

    def add_twice() -> None:
        with filled.begin() as work:
            for _ in range(2):
                blocks._ADD_RESULT.count(work.connection, row)

    with pytest.raises(LostRace):
        add_twice()
    with filled.read() as work:
        assert work.blocks.accepted_sha256("b1") is None
        place = work.members.get("s1", "a1")
    assert place is not None
    assert place.state is MemberState.PREPARING
