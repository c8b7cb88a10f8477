"""A token is looked up once, and not let in a moment longer than it counts."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import cast

import pytest

from advisor.errors import Unauthenticated
from advisor.protocol.views import NewToken, Role
from advisor.services.tokens import KnownTokens, create_token, revoke_token
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

    known = KnownTokens(cast(Database, Slow()))
    assert known.authenticate(token, world.now).name == "eve"
    assert known.find(token, world.now) is None


def test_nothing_is_known_where_other_servers_change_tokens_too() -> None:
    assert Database("postgresql://nowhere/none", lambda: "").tokens_stamp is None
