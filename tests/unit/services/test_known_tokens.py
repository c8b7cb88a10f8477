"""A token is looked up once, and not let in a moment longer than it counts."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import cast

import pytest

from advisor.errors import Unauthenticated, Unavailable
from advisor.protocol.views import NewToken, Role
from advisor.services.tokens import NOTE_AFTER, KnownTokens, create_token, revoke_token
from advisor.storage import Database, UnitOfWork
from tests.unit.services.world import World


@pytest.fixture
def known(world: World) -> KnownTokens:
    return KnownTokens(world.database)


def make_token(world: World, expires_s: float | None = None) -> tuple[str, str]:
    with world.work() as work:
        made = create_token(work, NewToken(role=Role.VIEWER, label="eve", expires_s=expires_s), world.now)
    return made.id, made.token


def test_token_is_known_once_it_was_looked_up(world: World, known: KnownTokens) -> None:
    _, token = make_token(world)
    assert known.find(token, world.now) is None
    assert known.authenticate(token, world.now).name == "eve"
    found = known.find(token, world.now)
    assert found is not None
    assert found.name == "eve"
    assert known.find(token[:-1] + "!", world.now) is None


def test_revoked_token_is_not_known_any_more(world: World, known: KnownTokens) -> None:
    token_id, token = make_token(world)
    known.authenticate(token, world.now)
    with world.work() as work:
        revoke_token(work, token_id, world.now)
    assert known.find(token, world.now) is None
    with pytest.raises(Unauthenticated):
        known.authenticate(token, world.now)


def test_token_is_known_until_it_expires(world: World, known: KnownTokens) -> None:
    _, token = make_token(world, expires_s=60)
    known.authenticate(token, world.now)
    assert known.find(token, world.now + timedelta(seconds=59)) is not None
    assert known.find(token, world.now + timedelta(seconds=60)) is None


def test_look_up_that_a_revocation_overtakes_is_of_no_use_later(world: World) -> None:
    token_id, token = make_token(world)

    class Slow:
        """A database in which the token is revoked after a look-up has begun."""

        @property
        def tokens_stamp(self) -> object | None:
            return world.database.tokens_stamp

        @contextmanager
        def read(self) -> Iterator[UnitOfWork]:
            with world.database.read() as work:
                work.tokens.secret_of(token_id)
                with world.work() as other:
                    revoke_token(other, token_id, world.now)
                yield work

        @contextmanager
        def begin(self) -> Iterator[UnitOfWork]:
            with world.database.begin() as work:
                yield work

    known = KnownTokens(cast(Database, Slow()))
    assert known.authenticate(token, world.now).name == "eve"
    assert known.find(token, world.now) is None


def tell_use(world: World, token_id: str) -> datetime | None:
    with world.work() as work:
        found = work.tokens.secret_of(token_id)
    assert found is not None
    return found[1].last_used_at


def test_use_is_noted_once_in_some_minutes(world: World, known: KnownTokens) -> None:
    token_id, token = make_token(world)
    assert tell_use(world, token_id) is None
    known.authenticate(token, world.now)
    soon = world.now + NOTE_AFTER - timedelta(seconds=1)
    assert known.find(token, soon) is not None
    known.authenticate(token, soon)
    assert tell_use(world, token_id) == world.now
    later = world.now + NOTE_AFTER
    assert known.find(token, later) is None, "it has to be looked up, which notes the use"
    known.authenticate(token, later)
    assert tell_use(world, token_id) == later
    assert known.find(token, later) is not None


def test_agents_own_token_is_never_written_for_its_use(world: World, known: KnownTokens) -> None:
    agent_id = world.register("node1")
    with world.work() as work:
        made = create_token(work, NewToken(role=Role.AGENT, label="node1"), world.now, agent_id)
    stamp = world.database.tokens_stamp
    known.authenticate(made.token, world.now + timedelta(days=1))
    assert known.find(made.token, world.now + timedelta(days=2)) is not None
    assert tell_use(world, made.id) == world.now, "when the agent was last seen"
    assert world.database.tokens_stamp is stamp


def test_database_that_cannot_be_written_to_lets_people_in(world: World) -> None:
    _, token = make_token(world)

    class Full:
        """A database whose disk is full."""

        tokens_stamp = world.database.tokens_stamp
        read = world.database.read

        @contextmanager
        def begin(self) -> Iterator[UnitOfWork]:
            raise Unavailable("The disk is full.")
            yield

    known = KnownTokens(cast(Database, Full()))
    assert known.authenticate(token, world.now).name == "eve"
    assert known.find(token, world.now) is not None
