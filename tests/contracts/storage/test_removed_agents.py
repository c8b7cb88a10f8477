"""An agent that was removed, on SQLite and on PostgreSQL: nobody sees it, and what was measured with it stays."""

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from advisor.errors import AgentIsBusy, AgentNotFound, LostRace, Unauthenticated
from advisor.protocol.asked.jobs import JobState
from advisor.protocol.measured.telemetry import TelemetrySample
from advisor.protocol.measured.trials import Session, SessionState
from advisor.protocol.nodes.cluster import Cluster
from advisor.protocol.views import NewToken, Role
from advisor.services import agents
from advisor.services.answers import advice
from advisor.services.jobs import list_events
from advisor.services.tokens import authenticate, create_token
from advisor.storage import UnitOfWork
from advisor.storage.whole.upkeep import Ages
from tests.unit.services.scripted_tuning import make_node
from tests.unit.services.world import World


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    """A server without HTTP on either database."""
    world = World(database_url)
    yield world
    world.database.close()


def remove(world: World, agent_id: str) -> None:
    with world.work() as work:
        agents.remove_agent(work, agent_id, world.now)


def finish_a_job(world: World, agent: str) -> str:
    job = world.submit()
    (place,) = world.start_session(agent)
    while world.next(place, agent).race is not None:
        world.measure(place, agent)
    with world.work() as work:
        work.telemetry.add(place.session_id, agent, [(1.0, TelemetrySample(age_s=0.0, cpu=0.5))])
        work.logs.append(job.id, place.session_id, "one", "a line")
    world.end(place, agent)
    world.keep_up()
    assert world.job(job.id).state is JobState.FINISHED
    return job.id


def read_all(work: UnitOfWork, job_id: str) -> list[object]:
    """All that is told of a job that has ended."""
    sessions = work.sessions.of_job(job_id)
    return [
        work.jobs.get(job_id),
        sessions,
        [work.telemetry.of_session(session.id, 100) for session in sessions],
        work.logs.after(job_id, 0, 100),
        work.blocks.of_job(job_id),
        work.trials.of_job(job_id),
        list_events(work, job_id, 0, 1000),
        advice.get_advice(work, job_id),
        advice.report_job(work, job_id),
    ]


def test_what_a_removed_agent_measured_reads_as_before(world: World) -> None:
    agent = world.register("one", secret="its own")
    job_id = finish_a_job(world, agent)
    with world.database.read() as work:
        before = read_all(work, job_id)
    remove(world, agent)
    with world.database.read() as work:
        assert read_all(work, job_id) == before
        assert work.sessions.of_job(job_id)[0].agents == ("one",)
        assert agents.view_agents(work, world.now, world.timers) == ()
        assert (work.agents.count(), work.agents.exists(agent)) == (0, False)
        assert work.agents.page(9, None, "one") == []
        assert set(work.counts.take(world.now).agents.values()) == {0}
        assert work.upkeep.find_damage() == []


def test_removed_agent_is_known_to_no_other_action(world: World) -> None:
    agent = world.register("one")
    remove(world, agent)
    with world.work() as work:
        for act in (
            lambda: agents.remove_agent(work, agent, world.now),
            lambda: agents.drain_agent(work, agent, "Its fan is replaced."),
            lambda: agents.resume_agent(work, agent),
            lambda: agents.readmit_agent(work, agent),
            lambda: agents.holds_ending(work, agent),
        ):
            with pytest.raises(AgentNotFound):
                act()
        assert work.agents.lock([agent]) == []
    with world.work() as work, pytest.raises(AgentNotFound):
        agents.remove_agent(work, "none", world.now)


def test_own_token_of_a_removed_agent_counts_no_more(world: World) -> None:
    agent = world.register("one")
    with world.work() as work:
        own = create_token(work, NewToken(role=Role.AGENT, label="one"), world.now, agent).token
    remove(world, agent)
    with world.work() as work, pytest.raises(Unauthenticated, match="revoked"):
        authenticate(work, own, world.now)


def test_name_of_a_removed_agent_is_free_and_begins_anew(world: World) -> None:
    agent = world.register("one", secret="its own")
    job_id = finish_a_job(world, agent)
    world.drain(agent, "Its fan is replaced.")
    with world.work() as work:
        work.agents.turn_out(agent, world.now)
    remove(world, agent)
    # At once, though the other was heard of a moment ago; nothing that was said about it concerns who comes.
    world.register("one", make_node("another"), secret="another")
    with world.work() as work:
        (view,) = agents.view_agents(work, world.now, world.timers)
        assert (view.name, view.node.hostname, view.state.value) == ("one", "another", "idle")
        assert (view.drained_because, view.flag, view.ends_at) == (None, None, None)
    assert [session.agents for session in world.history(job_id).sessions] == [("one",)]
    again = world.submit()
    assert world.start_session(view.id)[0].job_id == again.id


def test_agent_that_holds_a_session_stays_until_it_has_ended(world: World) -> None:
    agent = world.register("one")
    world.submit()
    (place,) = world.start_session(agent)
    with pytest.raises(AgentIsBusy, match=f"one holds session {place.session_id}"):
        remove(world, agent)
    world.drain(agent, "It is gone.")
    world.end(place, agent)
    remove(world, agent)
    world.keep_up()
    with world.database.read() as work:
        assert work.agents.all() == []


def test_agent_is_given_a_session_or_removed_and_never_both(world: World) -> None:
    agent, job = world.register("one"), world.submit()
    errors: list[Exception] = []

    def remove_it() -> None:
        try:
            remove(world, agent)
        except AgentIsBusy as error:
            errors.append(error)

    # Another server has just seen that the agent is idle, and gives it a place while it is being removed.
    with world.work() as work:
        assert [found.id for found in work.agents.lock([agent])] == [agent]
        other = threading.Thread(target=remove_it)
        other.start()
        other.join(0.3)
        assert other.is_alive()
        generation = work.jobs.start(job.id, Cluster(), world.now)
        assert generation is not None
        work.sessions.add(
            Session(
                id="s1",
                job_id=job.id,
                generation=generation,
                state=SessionState.ASSEMBLING,
                created_at=world.now,
            )
        )
        work.members.add("s1", agent, 0)
    other.join(10)
    assert len(errors) == 1
    with world.database.read() as work:
        assert work.agents.exists(agent)
        assert work.upkeep.find_damage() == []


def test_agent_that_is_removed_while_it_registers_asks_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = world.register("one", secret="its own")
    with world.database.read() as work:
        known = work.agents.find("one")
    remove(world, agent)
    monkeypatch.setattr("advisor.storage.repositories.accounts.Agents.find", lambda *_: known)
    with pytest.raises(LostRace):
        world.register("one", secret="its own")
    with world.database.read() as work:
        assert work.agents.all() == []


def test_removed_agent_goes_with_what_it_measured(world: World) -> None:
    agent = world.register("one")
    job_id = finish_a_job(world, agent)
    remove(world, agent)
    late = world.now + timedelta(days=1)

    def prune(jobs: timedelta) -> None:
        with world.work() as work:
            work.upkeep.prune(Ages(late, late, late, late, late, world.now + jobs))

    prune(timedelta(days=-1))
    with world.database.read() as work:
        found = work.agents.find("one")
        assert (found is not None, work.sessions.of_job(job_id)[0].agents) == (True, ("one",))
    prune(timedelta(days=1))
    prune(timedelta(days=1))
    with world.database.read() as work:
        assert work.agents.find("one") is None
        assert work.upkeep.find_damage() == []
