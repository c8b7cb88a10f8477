"""Agents that wait for work: what they cost, and when they are called."""

from contextlib import ExitStack
from functools import partial
from typing import cast

import pytest

from advisor.errors import Unavailable
from advisor.services.background.lobby import Lobby
from advisor.storage import Database
from tests.unit.services.counted import CountedDatabase
from tests.unit.services.world import World


class Waiting:
    """Agents in a lobby."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.database = CountedDatabase(world.database)
        self.lobby = Lobby(cast(Database, self.database), world.timers)
        self.called: list[str] = []

    def enter(self, room: ExitStack, *agents: str) -> None:
        for agent in agents:
            room.enter_context(self.lobby.wait(agent, partial(self.called.append, agent), self.world.now))


@pytest.fixture
def waiting(world: World) -> Waiting:
    return Waiting(world)


def test_agents_that_wait_cost_one_look_however_many_they_are(world: World, waiting: Waiting) -> None:
    agents = [world.register(f"agent {number}") for number in range(50)]
    with ExitStack() as room:
        waiting.enter(room, *agents)
        waiting.lobby.look(world.now)
        assert (waiting.database.reads, waiting.database.writes) == (1, 1)
        waiting.lobby.look(world.now)
        assert (waiting.database.reads, waiting.database.writes) == (2, 1)
    waiting.lobby.look(world.now)
    assert (waiting.database.reads, waiting.database.writes) == (2, 1)


def test_those_are_called_that_a_place_waits_for(world: World, waiting: Waiting) -> None:
    one, two = world.register("one"), world.register("two")
    with ExitStack() as room:
        waiting.enter(room, one, two)
        waiting.lobby.look(world.now)
        assert waiting.called == []
        world.submit()
        world.keep_up()
        waiting.lobby.look(world.now)
        assert waiting.called == [one]


def test_everybody_is_called_when_the_server_stops_and_nobody_who_has_left(
    world: World, waiting: Waiting
) -> None:
    with ExitStack() as room:
        waiting.enter(room, world.register("one"), world.register("two"))
        waiting.lobby.call()
    waiting.lobby.call()
    assert len(waiting.called) == 2


def test_who_was_silent_is_news_and_who_asks_as_usual_is_not(world: World, waiting: Waiting) -> None:
    agent = world.register("one")

    def ask() -> bool:
        with ExitStack() as room:
            waiting.enter(room, agent)
            return waiting.lobby.look(world.now)

    assert ask()
    world.wait(10)
    assert not ask()
    assert not waiting.lobby.look(world.now)
    world.wait(60)
    assert ask()


def test_what_was_heard_while_the_database_was_away_is_written_afterwards(
    world: World, waiting: Waiting
) -> None:
    agent = world.register("one")
    world.wait(60)
    waiting.database.takes_writes = False
    with ExitStack() as room:
        waiting.enter(room, agent)
        with pytest.raises(Unavailable):
            waiting.lobby.look(world.now)
    waiting.database.takes_writes = True
    assert waiting.lobby.look(world.now)
    with world.database.read() as work:
        assert [known.last_seen_at for known in work.agents.all()] == [world.now]
