"""What the storage promises of notices that wait to be posted, on SQLite and on PostgreSQL alike."""

from datetime import UTC, datetime, timedelta

from advisor.storage import Database
from advisor.storage.repositories.outbox import Notice

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=120)


def put(database: Database, *event_ids: str, job_id: str = "j", most: int = 10) -> None:
    with database.begin() as work:
        for event_id in event_ids:
            work.outbox.add(Notice(job_id, event_id, "https://a/b", '{"a": 1}', NOW), most)


def take(database: Database, now: datetime = NOW, limit: int = 10) -> list[Notice]:
    with database.begin() as work:
        return work.outbox.take(now, now + timedelta(seconds=120), limit)


def test_due_notices_are_taken_once_in_their_order_until_their_time_is_over(database: Database) -> None:
    put(database, "a", "b", "c")
    first = take(database, limit=2)
    assert [(n.event_id, n.tries, n.url, n.body, n.created_at) for n in first] == [
        (event_id, 1, "https://a/b", '{"a": 1}', NOW) for event_id in "ab"
    ]
    assert [n.event_id for n in take(database)] == ["c"]
    assert take(database) == []
    with database.read() as work:
        assert not work.outbox.has_due(NOW)
        assert work.outbox.has_due(LATER)
    assert [(n.event_id, n.tries) for n in take(database, LATER)] == [("a", 2), ("b", 2), ("c", 2)]


def test_who_was_too_late_changes_nothing_that_another_took(database: Database) -> None:
    put(database, "a")
    (slow,) = take(database)
    (quick,) = take(database, LATER)
    with database.begin() as work:
        work.outbox.postpone(slow, NOW)
        assert not work.outbox.has_due(LATER)
        work.outbox.postpone(quick, NOW)
        assert work.outbox.has_due(NOW)
        assert work.outbox.remove(quick)
        assert not work.outbox.remove(slow)
    put(database, "b")
    with database.begin() as work:
        assert not work.outbox.remove(slow), "not even one that has got its place"
    assert [n.event_id for n in take(database)] == ["b"]


def test_of_a_job_the_latest_notices_are_kept(database: Database) -> None:
    put(database, "other", job_id="other")
    put(database, *"abcd", most=2)
    with database.read() as work:
        assert work.counts.take(NOW).webhooks == 3
    assert [n.event_id for n in take(database)] == ["other", "c", "d"]
