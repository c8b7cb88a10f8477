"""Names and tokens as time goes by: an agent that is silent, a token that expires."""

import pytest

from advisor.errors import AgentNameTaken, Unauthenticated
from advisor.protocol.views import AgentState, NewToken, Role
from advisor.services.agents import view_agents
from advisor.services.tokens import authenticate, create_token, revoke_token, still_counts
from tests.unit.services.world import World


def test_name_of_an_agent_that_fell_silent_is_free_for_another(world: World) -> None:
    agent = world.register("one", secret="its own")
    world.wait(world.timers.silent_s)
    with pytest.raises(AgentNameTaken):
        world.register("one", secret="another")
    world.wait(1)
    assert world.register("one", secret="another") == agent
    with pytest.raises(AgentNameTaken):
        world.register("one", secret="its own")


def test_name_of_a_silent_agent_that_holds_a_session_is_not_free(world: World) -> None:
    agent = world.register("one", secret="its own")
    world.submit()
    world.keep_up()
    assert world.poll(agent) is not None
    world.wait(world.timers.silent_s + 1)
    with pytest.raises(AgentNameTaken):
        world.register("one", secret="another")


def test_token_counts_until_it_expires_or_is_revoked(world: World) -> None:
    with world.work() as work:
        short = create_token(work, NewToken(role=Role.VIEWER, expires_s=60), world.now)
        long = create_token(work, NewToken(role=Role.VIEWER), world.now)
        principals = [authenticate(work, token.token, world.now) for token in (short, long)]
    world.wait(60)
    with world.work() as work:
        with pytest.raises(Unauthenticated, match="expired at 2026-01-01 00:01 UTC"):
            authenticate(work, short.token, world.now)
        assert [still_counts(work, one, world.now) for one in principals] == [False, True]
        revoke_token(work, long.id, world.now)
        with pytest.raises(Unauthenticated, match="revoked"):
            authenticate(work, long.token, world.now)
        assert not still_counts(work, principals[1], world.now)


def test_two_tokens_without_a_label_are_two_people(world: World) -> None:
    with world.work() as work:
        made = [create_token(work, NewToken(role=Role.SUBMITTER), world.now) for _ in range(2)]
        names = {authenticate(work, token.token, world.now).name for token in made}
    assert len(names) == 2


def test_agent_that_holds_a_session_is_never_taken_for_silent(world: World) -> None:
    agent = world.register("one")
    world.submit()
    world.keep_up()
    assert world.poll(agent) is not None
    world.wait(10 * world.timers.silent_s)
    with world.database.read() as work:
        (view,) = view_agents(work, world.now, world.timers)
        counts = work.counts.take(world.now)
    assert (view.state, counts.agents[AgentState.SILENT]) == (AgentState.BUSY, 0)
