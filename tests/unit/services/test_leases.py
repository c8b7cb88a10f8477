"""Leases run only while the server runs; clocks of the day mean nothing to them."""

from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest

from advisor.protocol.asked.jobs import JobState
from advisor.protocol.measured.messages import Assignment, Beat, MemberState
from advisor.protocol.measured.spending import measure_wall_s
from advisor.protocol.measured.trials import Outcome, SessionState
from advisor.services.background.reaper import AwakeClock, Reaper
from advisor.services.measuring.leases import Leases
from advisor.storage import Database
from tests.unit.services.counted import CountedDatabase
from tests.unit.services.world import World

TICK_S = 1.0
BEAT_S = 2


class Server:
    """A server's reaper at its ticks, by clocks that the test turns."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.database = CountedDatabase(world.database)
        self.elapsed_s = 0.0
        self.rate = 1.0
        self.start()

    def start(self) -> None:
        """Begin to watch, as a server that starts."""
        clock = AwakeClock(lambda: self.elapsed_s, 2 * TICK_S)
        self.world.leases = Leases(self.world.database)
        self.reaper = Reaper(cast(Database, self.database), self.world.timers, clock, self.world.leases)
        self.reaper.look(self.world.now)

    def stand(self, seconds: float) -> None:
        """Let time pass in which nothing of the server runs."""
        self.elapsed_s += seconds * self.rate
        self.world.now += timedelta(seconds=seconds * self.rate)

    def run(self, seconds: int, beating: tuple[Assignment, str] | None = None) -> int:
        """Let the server run; return how many sessions it gave up. `beating`: an agent that renews its lease."""
        lost = 0
        for second in range(seconds):
            self.stand(TICK_S)
            if beating and second % BEAT_S == 0:
                self.world.beat(*beating)
            lost += self.reaper.look(self.world.now)
        return lost


@pytest.fixture
def server(world: World) -> Server:
    return Server(world)


@pytest.fixture
def held(world: World, server: Server) -> tuple[Assignment, str]:
    """A place in a running session, and its agent."""
    world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    assert server.run(4, (place, agent)) == 0
    return place, agent


def state_of(world: World, place: Assignment) -> SessionState:
    return world.history(place.job_id).sessions[0].state


def test_session_is_lost_a_lease_and_its_grace_after_the_last_beat(
    server: Server, held: tuple[Assignment, str]
) -> None:
    assert server.run(34) == 0
    assert server.run(3) == 1


@pytest.mark.parametrize("gap_s", [8, 600, 86_400])
def test_time_that_the_server_was_stopped_for_is_nobodys_silence(
    server: Server, world: World, held: tuple[Assignment, str], gap_s: float
) -> None:
    assert server.run(28) == 0
    server.stand(gap_s)
    assert server.reaper.look(world.now) == 0
    assert server.run(40, held) == 0
    assert state_of(world, held[0]) is SessionState.RUNNING


def test_server_that_is_stopped_again_and_again_still_gives_up_who_is_silent(
    server: Server, world: World, held: tuple[Assignment, str]
) -> None:
    lost = 0
    for _ in range(8):
        server.stand(60)
        lost += server.run(5)
    assert lost == 1


@pytest.mark.parametrize("step", [timedelta(hours=1), timedelta(hours=-1), timedelta(seconds=45)])
def test_step_of_the_clock_of_the_day_changes_nothing(
    server: Server, world: World, held: tuple[Assignment, str], step: timedelta
) -> None:
    world.now += step
    assert server.run(20, held) == 0
    assert server.run(31) == 0
    assert server.run(5) == 1


@pytest.mark.parametrize("rate", [1.3, 1 / 1.3])
def test_clock_of_another_rate_loses_no_agent_that_beats_and_waits_for_the_fence_of_one_that_does_not(
    server: Server, held: tuple[Assignment, str], rate: float
) -> None:
    server.rate = rate
    assert server.run(120, held) == 0
    # An agent's own clock fences it 0.6 leases after its last beat, and its ranks are dead 5 s later.
    assert server.run(23) == 0


def test_database_that_takes_no_writes_makes_no_agent_silent(
    server: Server, world: World, held: tuple[Assignment, str]
) -> None:
    place, agent = held
    full = Beat(generation=place.generation, state=MemberState.RUNNING, news=1, log="It goes on.")
    server.database.takes_writes = False
    for second in range(600):
        server.stand(TICK_S)
        if second % BEAT_S == 0:
            # What it brings cannot be kept; that it came is known.
            assert world.leases.renew(place.session_id, agent, full, world.timers.pace(1)) is None
        assert server.reaper.look(world.now) == 0
    server.database.takes_writes = True
    assert server.run(30) == 0
    assert state_of(world, place) is SessionState.RUNNING
    assert server.run(6) == 1


def test_beat_that_brings_nothing_costs_no_transaction_until_the_session_ends(
    world: World, held: tuple[Assignment, str]
) -> None:
    place, agent = held
    quiet = Beat(generation=place.generation, state=MemberState.RUNNING, news=1)
    pace = world.timers.pace(1)
    reply = world.leases.renew(place.session_id, agent, quiet, pace)
    assert reply == world.beat(place, agent)
    assert reply is not None
    assert (reply.state, reply.rendezvous) == (SessionState.RUNNING, "127.0.0.1:29500")
    for other in (
        quiet.model_copy(update={"generation": place.generation + 1}),
        quiet.model_copy(update={"state": MemberState.GONE}),
        quiet.model_copy(update={"log": "a line"}),
    ):
        assert world.leases.renew(place.session_id, agent, other, pace) is None
    assert world.leases.renew(place.session_id, "another agent", quiet, pace) is None
    world.cancel(place.job_id)
    assert world.leases.renew(place.session_id, agent, quiet, pace) is None
    assert world.beat(place, agent).state is SessionState.ENDING


def test_answer_that_an_end_overtakes_is_not_remembered(world: World, held: tuple[Assignment, str]) -> None:
    place, agent = held
    quiet = Beat(generation=place.generation, state=MemberState.RUNNING)
    before, stamp = world.beat(place, agent), world.leases.stamp
    world.cancel(place.job_id)
    world.leases.remember(place.session_id, agent, quiet, before, stamp)
    assert world.leases.renew(place.session_id, agent, quiet, world.timers.pace(1)) is None


def test_agent_that_vanished_before_it_took_its_place_does_not_hold_the_others_when_the_session_ends(
    server: Server, world: World
) -> None:
    job = world.submit(nodes=2)
    first = world.register("one")
    world.register("two")
    world.keep_up()
    place = world.poll(first)
    assert place is not None
    world.beat(place, first, MemberState.READY)
    world.cancel(job.id)
    world.end(place, first, Outcome.CANCELLED, "The job was cancelled.")
    assert state_of(world, place) is SessionState.ENDING
    assert server.run(34) == 0
    assert server.run(4) == 1
    assert world.job(job.id).state is JobState.CANCELLED


def test_member_that_only_said_gone_has_the_grace_and_no_more(
    server: Server, world: World, held: tuple[Assignment, str]
) -> None:
    world.beat(*held, MemberState.GONE)
    assert server.run(5) == 0
    assert state_of(world, held[0]) is SessionState.ENDING
    server.run(3)
    assert state_of(world, held[0]) is SessionState.ENDED


def test_start_of_a_server_gives_a_minute_and_two_leases_before_anything_is_lost(
    server: Server, world: World, held: tuple[Assignment, str]
) -> None:
    server.run(33)
    server.stand(3600)
    server.start()
    assert server.run(60) == 0
    assert server.run(2) == 1


def spent_s(world: World, place: Assignment) -> float:
    history = world.history(place.job_id)
    return measure_wall_s(history.sessions, world.now)


@pytest.mark.parametrize("registers", [True, False])
def test_hours_in_which_neither_server_nor_agents_ran_cost_nothing(
    server: Server, world: World, held: tuple[Assignment, str], registers: bool
) -> None:
    server.run(21, held)
    before_s = spent_s(world, held[0])
    server.stand(5 * 3600)
    server.start()
    if registers:
        world.register("one")
    else:
        assert server.run(90) == 1
    assert state_of(world, held[0]).is_final
    assert before_s - BEAT_S <= spent_s(world, held[0]) <= before_s


def test_gang_is_paid_for_until_the_last_of_it_is_gone(world: World) -> None:
    world.submit(nodes=2)
    agents = world.register("one"), world.register("two")
    places = world.start_session(*agents)
    for _ in range(10):
        world.wait(2)
        world.beat(places[0], agents[0])
    world.wait(1)
    world.register("two")
    world.wait(1)
    world.end(places[0], agents[0])
    assert spent_s(world, places[0]) == 22


@pytest.fixture
def crowded(world: World) -> Server:
    """A server that takes a beat in 50 s: with one agent in a session, that is how often it is to renew."""
    world.timers = replace(world.timers, most_beats_per_s=1 / 50)
    return Server(world)


def test_agents_of_a_crowd_are_told_to_renew_less_often_and_keep_their_leases(
    crowded: Server, world: World
) -> None:
    world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    assert world.timers.pace(1).beat_s == 50
    for _ in range(4):
        reply = world.beat(place, agent)
        assert (reply.beat_s, reply.fence_s) == (50, 90)
        assert crowded.run(60) == 0
    # Silent for longer than the agent's own fence, and then for good.
    assert crowded.run(94) == 0
    assert crowded.run(4) == 1


def test_reaper_of_a_crowd_looks_at_its_members_less_often(crowded: Server, world: World) -> None:
    world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    crowded.run(10, beating=(place, agent))
    before = crowded.database.reads
    # Its leases are 120 s longer than usual.
    assert crowded.run(9, beating=(place, agent)) == 0
    assert crowded.database.reads == before + 3


def test_crowd_that_has_gone_still_lets_those_that_are_left_renew_when_they_were_told_to(
    world: World,
) -> None:
    world.timers = replace(world.timers, most_beats_per_s=1 / 25)
    server = Server(world)
    jobs = [world.submit() for _ in range(2)]
    agents = [world.register(name) for name in ("one", "two")]
    places = [world.start_session(agent)[0] for agent in agents]
    assert server.run(70) == 0
    for place, agent in zip(places, agents, strict=True):
        assert world.beat(place, agent).beat_s == 50
    server.run(1)
    world.end(places[0], agents[0], Outcome.FINISHED, "The script ended.")
    assert world.job(jobs[0].id).id == places[0].job_id
    assert server.run(150) == 0
    assert server.run(8) == 1


def test_new_server_waits_for_the_longest_pace_that_an_earlier_one_can_have_told(world: World) -> None:
    world.timers = replace(world.timers, most_beats_per_s=1 / 25)
    server = Server(world)
    world.submit()
    world.start_session(world.register("one"))
    world.register("idle")
    server.run(1)
    server.start()
    assert server.run(299) == 0
    assert server.run(4) == 1
