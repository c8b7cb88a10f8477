"""A command's agents stop and come back under the same names: no launch is lost to those of the command before."""

from datetime import timedelta

from advisor.protocol.measured.messages import MemberState
from advisor.protocol.measured.trials import Outcome, SessionState
from tests.unit.services.scripted_tuning import make_node
from tests.unit.services.world import World


def test_agent_that_comes_back_takes_up_the_place_that_its_predecessor_was_given(world: World) -> None:
    world.register("local-1")
    job = world.submit()
    world.keep_up()
    agent = world.register("local-1")
    place = world.poll(agent)
    assert place is not None
    assert world.beat(place, agent, MemberState.READY).state is SessionState.RUNNING
    assert [session.outcome for session in world.history(job.id).sessions] == [None]


def test_place_is_not_kept_for_an_agent_that_comes_back_on_another_node(world: World) -> None:
    world.register("local-1")
    job = world.submit()
    world.keep_up()
    world.register("local-1", make_node("another"))
    assert [session.outcome for session in world.history(job.id).sessions] == [Outcome.LOST]


def test_server_that_starts_gives_no_place_to_an_agent_that_it_never_heard(world: World) -> None:
    world.register("local-1")
    job = world.submit()
    world.wait(1)
    served_since = world.now

    def tick() -> None:
        world.keep_up(served_since)

    tick()
    assert world.history(job.id).sessions == ()
    agent = world.register("local-1")
    tick()
    assert world.poll(agent) is not None


def test_agent_that_went_on_asking_counts_for_the_server_that_started(world: World) -> None:
    agent = world.register("node-1")
    world.submit()
    world.wait(1)
    served_since = world.now
    world.poll(agent)
    world.keep_up(served_since)
    assert world.poll(agent) is not None


def test_agent_that_stopped_before_the_clock_was_set_back_is_given_no_place(world: World) -> None:
    world.register("stopped")
    world.now -= timedelta(hours=1)
    job = world.submit()
    world.keep_up()
    assert world.history(job.id).sessions == ()
    agent = world.register("alive")
    world.keep_up()
    assert world.poll(agent) is not None
