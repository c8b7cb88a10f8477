"""Visits of the dashboard: how long they last, how many there are, and that a restart ends none."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from advisor.protocol.views import NewToken, Role
from advisor.services.tokens import create_token, hash_secret, revoke_token
from advisor.services.visits import IDLE, MOST_OF_A_TOKEN, find_visit, mark_visit, open_visit
from advisor.storage import Database
from advisor.storage.whole.upkeep import Ages

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
Open = Callable[[], Database]


@pytest.fixture
def start(tmp_path: Path) -> Open:
    """A server's database, as each start of the server opens it."""
    numbers = iter(range(1000))

    def open_database() -> Database:
        database = Database(f"sqlite:///{tmp_path / 'advisor.db'}", lambda: f"id{next(numbers)}")
        database.migrate()
        return database

    return open_database


def make_token(database: Database, label: str) -> str:
    with database.begin() as work:
        return create_token(work, NewToken(role=Role.VIEWER, label=label), NOW).token


def sign_in(database: Database, key: str, token: str, now: datetime = NOW) -> None:
    with database.begin() as work:
        open_visit(work, key, token, now)


def look(database: Database, key: str, now: datetime = NOW) -> str | None:
    """The name of whoever is signed in; marks the visit as the pages do."""
    with database.begin() as work:
        found = find_visit(work, key, now)
        if found and found[1]:
            mark_visit(work, key, found[0], now)
    return found[0].name if found else None


def test_visit_outlasts_a_restart_and_its_cookie_is_stored_nowhere(start: Open, tmp_path: Path) -> None:
    first = start()
    sign_in(first, "a-cookie-of-ada", make_token(first, "ada"))
    first.close()
    second = start()
    assert look(second, "a-cookie-of-ada") == "ada"
    second.close()
    assert b"a-cookie-of-ada" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def test_visit_ends_after_twelve_idle_hours_but_not_before(start: Open) -> None:
    database, now = start(), NOW
    sign_in(database, "hers", make_token(database, "ada"))
    for _ in range(3):
        now += timedelta(hours=11)
        assert look(database, "hers", now) == "ada"
    assert look(database, "hers", now + IDLE + timedelta(seconds=1)) is None


def test_many_visits_of_one_token_push_out_its_own_only(start: Open) -> None:
    database = start()
    ada, bob = make_token(database, "ada"), make_token(database, "bob")
    sign_in(database, "hers", ada)
    for place in range(MOST_OF_A_TOKEN + 1):
        sign_in(database, f"his {place}", bob, NOW + timedelta(seconds=place + 1))
    assert look(database, "hers") == "ada"
    assert [look(database, f"his {place}") for place in (0, 1, MOST_OF_A_TOKEN)] == [None, "bob", "bob"]


def test_visit_ends_with_its_token_also_when_that_is_pruned(start: Open) -> None:
    database = start()
    sign_in(database, "hers", make_token(database, "ada"))
    with database.begin() as work:
        revoke_token(work, work.tokens.page(1)[0].id, NOW)
    assert look(database, "hers") is None
    with database.begin() as work:
        later = NOW + timedelta(days=1)
        work.upkeep.prune(Ages(NOW, NOW, NOW, NOW, later, NOW))
        assert work.visits.find(hash_secret("hers")) is None


def test_looking_at_pages_is_a_use_of_the_visits_token(start: Open) -> None:
    database = start()
    sign_in(database, "key", make_token(database, "ada"))
    for minutes in (4, 5, 9):
        look(database, "key", NOW + timedelta(minutes=minutes))
    with database.read() as work:
        assert [token.last_used_at for token in work.tokens.page(9)] == [NOW + timedelta(minutes=5)]
    database.close()
