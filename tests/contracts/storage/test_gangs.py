"""Several gangs of one job, decided by the real planner, on both databases."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

import pytest

from advisor.protocol.asked.jobs import Budget, JobSpec, JobState, Measurement, Stage
from advisor.protocol.base import Value
from advisor.protocol.measured.trials import Block, BlockState, JobHistory, Outcome, Purpose, SessionState
from advisor.protocol.training.workload import Workload, WorkloadKind
from advisor.services import jobs
from advisor.services.answers import advice
from advisor.tuning.asked import PlannerTuning
from tests.unit.services.fleet import Fleet
from tests.unit.services.world import ADA, World

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""What the planner decides hangs on no database: one whole job on both is enough."""


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    """A server without HTTP that asks the real planner."""
    world = World(database_url, PlannerTuning())
    yield world
    world.database.close()


def speed(changes: Mapping[str, Value]) -> float:
    return 1.3 if changes.get("fuse_grad_size_in_MB", 25.0) == 4.0 else 1.0


def submit(world: World, gangs: int, trials: int = 8, seconds: float = 100_000, **fields: object) -> str:
    spec: dict[str, object] = {
        "budget": Budget(max_trials=trials, max_seconds=seconds),
        "measurement": Measurement(warmup_steps=2, min_steps=24, max_steps=24, block_s=3.0),
        "gangs": gangs,
        "knobs": ("fuse_grad_size_in_MB", "num_threads"),
    }
    return world.submit(**spec | fields).id


def sentences(world: World, job_id: str) -> list[str]:
    with world.database.read() as work:
        return [event.sentence for event in jobs.list_events(work, job_id, 0, 10_000)]


def search_sessions(history: JobHistory) -> set[str]:
    searched = {trial.number for trial in history.trials if trial.purpose is Purpose.SEARCH}
    return {block.session_id for block in history.blocks if block.trial_number in searched}


def spans(blocks: Iterable[Block]) -> list[tuple[datetime, datetime]]:
    """When each race ran, in order."""
    return sorted({(block.issued_at, block.finished_at) for block in blocks if block.finished_at})


def test_two_gangs_search_side_by_side_and_never_the_same_strategy_at_one_time(world: World) -> None:
    fleet = Fleet(world, ["one", "two"], speed)
    job_id = submit(world, 2)
    fleet.play(job_id)
    history = world.history(job_id)
    assert world.job(job_id).state is JobState.FINISHED
    assert fleet.most_at_once == 2
    assert {session.gang for session in history.sessions} == {0, 1}
    assert len(search_sessions(history)) >= 2
    tried = [tuple(sorted(t.changes.items())) for t in history.trials if t.purpose is Purpose.SEARCH]
    assert len(tried) == len(set(tried))
    for trial in history.trials:
        if trial.purpose is Purpose.SEARCH:
            own = spans(block for block in history.blocks if block.trial_number == trial.number)
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(own))
    with world.database.read() as work:
        found = advice.get_advice(work, job_id)
    assert found.changes["fuse_grad_size_in_MB"] == 4.0
    held = [
        (s.ended_at - s.started_at).total_seconds() for s in history.sessions if s.ended_at and s.started_at
    ]
    # Gangs spend the same second once, and its device-hours twice.
    assert found.cost.device_hours == pytest.approx(2 * sum(held) / 3600)
    assert found.cost.wall_s < sum(held)


@on_sqlite
def test_what_is_compared_happens_in_one_session_at_a_time(world: World) -> None:
    fleet = Fleet(world, ["one", "two", "three"], speed)
    job_id = submit(world, 3)
    fleet.play(job_id)
    history = world.history(job_id)
    reported = {t.number for t in history.trials if t.purpose in {Purpose.CONFIRM, Purpose.REVERT}}
    races = {block.race for block in history.blocks if block.trial_number in reported}
    compared = [block for block in history.blocks if block.race in races]
    assert compared
    first = min(block.issued_at for block in compared)
    others = [b for b in history.blocks if b.race not in races and b.finished_at and b.finished_at > first]
    held = {block.session_id for block in compared}
    assert all(block.session_id in held for block in others)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans(compared)))


@on_sqlite
def test_first_session_alone_probes(world: World) -> None:
    fleet = Fleet(world, ["one", "two"], speed)
    job_id = submit(world, 2)
    while len(world.history(job_id).sessions) < 2:
        fleet.tick()
    history = world.history(job_id)
    assert sum(block.state is BlockState.DONE for block in history.blocks) >= 2
    assert world.job(job_id).stage is Stage.SEARCH
    assert [node.hostname for node in world.job(job_id).cluster.nodes] == list(history.sessions[0].agents)
    assert "joins the search" in history.sessions[1].because


@on_sqlite
def test_each_gang_begins_with_an_anchor_of_its_own(world: World) -> None:
    fleet = Fleet(world, ["one", "two"], speed)
    job_id = submit(world, 2)
    fleet.play(job_id)
    history = world.history(job_id)
    baseline = next(t.number for t in history.trials if t.purpose is Purpose.BASELINE)
    for session_id in search_sessions(history):
        own = [block for block in history.blocks if block.session_id == session_id]
        assert own[0].trial_number == baseline


@on_sqlite
def test_lost_gang_costs_its_own_race_only(world: World) -> None:
    fleet = Fleet(world, ["one", "two"], speed)
    job_id = submit(world, 2)
    while len(fleet.races) < 2:
        fleet.tick()
    second = world.history(job_id).sessions[1]
    fleet.dead.add(second.agents[0])
    fleet.play(job_id)
    history = world.history(job_id)
    assert world.job(job_id).state is JobState.FINISHED
    assert history.sessions[1].state is SessionState.LOST
    void = [block for block in history.blocks if block.state is BlockState.VOID]
    assert {block.session_id for block in void} <= {second.id}
    lost = {block.trial_number for block in void if block.plan.overrides}
    settled = {block.trial_number for block in history.blocks if block.state is BlockState.DONE}
    assert lost <= settled
    with world.database.read() as work:
        assert advice.get_advice(work, job_id).changes["fuse_grad_size_in_MB"] == 4.0


@on_sqlite
def test_lost_first_gang_leaves_the_search_to_the_other(world: World) -> None:
    fleet = Fleet(world, ["one", "two"], speed)
    job_id = submit(world, 2)
    while len(fleet.races) < 2:
        fleet.tick()
    fleet.dead.add(world.history(job_id).sessions[0].agents[0])
    fleet.play(job_id)
    history = world.history(job_id)
    assert world.job(job_id).state is JobState.FINISHED
    assert history.sessions[0].outcome is Outcome.LOST


@on_sqlite
def test_gang_that_crashes_at_its_launch_is_not_launched_again_and_fails_nothing(world: World) -> None:
    fleet = Fleet(world, ["one", "two"], speed)
    job_id = submit(world, 2)
    while not fleet.races:
        fleet.tick()
    (first,) = fleet.races
    fleet.crashing.add("two" if first == "one" else "one")
    fleet.play(job_id)
    assert world.job(job_id).state is JobState.FINISHED
    further = [session for session in world.history(job_id).sessions if session.gang == 1]
    assert [session.outcome for session in further] == [Outcome.CRASHED]


@on_sqlite
def test_gangs_of_a_command_launch_different_strategies_and_measure_what_they_were_launched_for(
    world: World,
) -> None:
    fleet = Fleet(world, ["one", "two"], speed, race_ticks=4)
    command = ("train", "${fuse_grad_size_in_MB:-25}", "${num_threads:-2}")
    spec = JobSpec(
        workload=Workload(kind=WorkloadKind.COMMAND, command=command),
        budget=Budget(max_trials=6, max_seconds=100_000),
        measurement=Measurement(warmup_steps=2, min_steps=24, max_steps=24, block_s=3.0),
        gangs=2,
    )
    with world.work() as work:
        job_id = jobs.submit_job(work, spec, ADA, None, world.now).id
    fleet.play(job_id)
    history = world.history(job_id)
    assert world.job(job_id).state is JobState.FINISHED
    assert fleet.most_at_once == 2
    for session in history.sessions:
        own = [block for block in history.blocks if block.session_id == session.id]
        assert [block.plan.overrides for block in own] == [session.cold]
    searched = [tuple(sorted(t.changes.items())) for t in history.trials if t.purpose is Purpose.SEARCH]
    assert len(searched) == len(set(searched))
    with world.database.read() as work:
        assert advice.get_advice(work, job_id).changes["fuse_grad_size_in_MB"] == 4.0


@on_sqlite
def test_cancelling_ends_every_gang_before_the_job_is_cancelled(world: World) -> None:
    fleet = Fleet(world, ["one", "two"], speed)
    job_id = submit(world, 2)
    while len(fleet.races) < 2:
        fleet.tick()
    assert world.cancel(job_id).state is JobState.CANCELLING
    history = world.history(job_id)
    assert {session.state for session in history.sessions} == {SessionState.ENDING}
    place = fleet.places["one"]
    world.end(place, fleet.ids["one"], Outcome.CANCELLED)
    assert world.job(job_id).state is JobState.CANCELLING
    world.end(fleet.places["two"], fleet.ids["two"], Outcome.CANCELLED)
    assert world.job(job_id).state is JobState.CANCELLED


@on_sqlite
def test_further_gangs_take_no_agents_from_jobs_that_have_none(world: World) -> None:
    fleet = Fleet(world, ["one", "two"], speed)
    job_id = submit(world, 2)
    while not world.history(job_id).blocks:
        fleet.tick()
    other = submit(world, 1)
    fleet.tick()
    assert len(world.history(other).sessions) == 1
    for _ in range(20):
        fleet.tick()
    assert {session.gang for session in world.history(job_id).sessions} == {0}


@on_sqlite
def test_one_gang_stays_one_however_many_agents_are_idle(world: World) -> None:
    fleet = Fleet(world, ["one", "two"], speed)
    job_id = submit(world, 1)
    fleet.play(job_id)
    assert fleet.most_at_once == 1
    assert {session.gang for session in world.history(job_id).sessions} == {0}


@on_sqlite
def test_device_hours_end_a_job(world: World) -> None:
    fleet = Fleet(world, ["one"], speed, race_ticks=4)
    costs = []
    for hours in (0.004, None):
        budget = Budget(max_trials=8, max_seconds=100_000, max_device_hours=hours)
        job_id = submit(world, 1, budget=budget)
        fleet.play(job_id)
        with world.database.read() as work:
            costs.append(advice.get_advice(work, job_id).cost)
    limited, free = costs
    # Two ranks: 7.2 s. The planner plans with the usual race, so that the last one may go a little beyond.
    assert limited.wall_s <= 7.2 + 4 < free.wall_s
    assert limited.device_hours == pytest.approx(2 * limited.wall_s / 3600)


@on_sqlite
def test_search_of_a_second_like_job_begins_where_the_first_one_ended(world: World) -> None:
    fleet = Fleet(world, ["one"], speed)
    first = submit(world, 1)
    fleet.play(first)
    second = submit(world, 1)
    fleet.play(second)
    assert world.history(first).earlier == ()
    (earlier,) = world.history(second).earlier
    assert (earlier.job_id, earlier.likeness) == (first, 1.0)
    assert earlier.changes["fuse_grad_size_in_MB"] == 4.0
    told = [sentence for sentence in sentences(world, second) if "similar earlier job" in sentence]
    assert len(told) == 1
    assert first in told[0]
    searched = [t for t in world.history(second).trials if t.purpose is Purpose.SEARCH]
    assert earlier.changes in [trial.changes for trial in searched[:4]]
