"""Decisions that are there before they are asked for, and that never outlive the version they are about."""

import threading
from collections.abc import Callable

import pytest

from advisor.errors import JobNotFound, Unavailable
from advisor.services.planning.decided import VersionedDecision
from advisor.services.planning.planner_queue import _MOST_AHEAD, PlannerQueue
from tests.unit.services.scripted_tuning import ScriptedTuning
from tests.unit.services.world import World


class Later:
    """Threads that run when the test says so."""

    def __init__(self) -> None:
        self.runs: list[Callable[[], None]] = []

    def start(self, run: Callable[[], None]) -> None:
        """Remember what is to be run."""
        self.runs.append(run)

    def run(self) -> int:
        """Run everything; return how many threads that took."""
        runs, self.runs = self.runs, []
        for run in runs:
            run()
        return len(runs)


def test_what_is_thought_already_is_not_thought_again(world: World) -> None:
    later, asked = Later(), []
    job = world.submit()

    def think(job_id: str) -> VersionedDecision:
        asked.append(job_id)
        return world.think(job_id)

    planner_queue = PlannerQueue(think, later.start)
    assert planner_queue.find(job.id, job.version) is None
    assert planner_queue.find(job.id, job.version) is None
    assert later.run() == 1
    assert planner_queue.find(job.id, job.version) is not None
    assert planner_queue.find(job.id, job.version) is planner_queue.find(job.id, job.version)
    assert asked == [job.id]


def test_thought_for_a_session_is_taken_once_and_not_kept(world: World) -> None:
    asked: list[str] = []
    job = world.submit()

    def think(job_id: str) -> VersionedDecision:
        asked.append(job_id)
        return world.think(job_id)

    planner_queue = PlannerQueue(think, lambda run: run())
    ahead = planner_queue.order(job.id).result()
    assert planner_queue.take(job.id, job.version) is ahead
    assert asked == [job.id]
    assert planner_queue.take(job.id, job.version) is not ahead
    assert asked == [job.id, job.id]


def test_nothing_is_thought_about_ahead_while_many_wait(world: World) -> None:
    later, asked = Later(), []
    job = world.submit()

    def think(job_id: str) -> VersionedDecision:
        asked.append(job_id)
        return world.think(job.id)

    planner_queue = PlannerQueue(think, later.start)
    for number in range(_MOST_AHEAD + 5):
        planner_queue.think_ahead(f"j{number}")
    # Whoever asks is answered all the same.
    question = planner_queue.order(job.id)
    later.run()
    assert asked == [*(f"j{number}" for number in range(_MOST_AHEAD)), job.id]
    assert question.result().job_id == job.id


def test_who_waits_behind_slow_thoughts_has_other_threads_think(world: World) -> None:
    *slow, quick = (world.submit() for _ in range(4))
    is_over = threading.Event()

    def think(job_id: str) -> VersionedDecision:
        if job_id != quick.id:
            assert is_over.wait(60)
        return world.think(job_id)

    planner_queue = PlannerQueue(think, lambda run: threading.Thread(target=run, daemon=True).start())
    held = [planner_queue.order(job.id) for job in slow]
    assert planner_queue.take(quick.id, quick.version).job_id == quick.id
    assert not any(future.done() for future in held)
    is_over.set()
    assert [future.result(60).job_id for future in held] == [job.id for job in slow]


def test_thought_about_an_older_version_is_looked_for_anew(world: World) -> None:
    job = world.submit()
    planner_queue = PlannerQueue(world.think, lambda run: run())
    old = planner_queue.find(job.id, job.version)
    with world.work() as work:
        version = work.jobs.set_waiting(job.id, job.version, "Something else.")
    assert version is not None
    assert old is not None
    assert old.version < version
    new = planner_queue.find(job.id, version)
    assert new is not None
    assert new.version == version


def test_what_could_not_be_thought_is_tried_again_and_told(world: World) -> None:
    job = world.submit()
    is_away = [True]

    def think(job_id: str) -> VersionedDecision:
        if is_away.pop() if is_away else False:
            raise Unavailable("The database is away.")
        return world.think(job_id)

    planner_queue = PlannerQueue(think, lambda run: run())
    with pytest.raises(Unavailable):
        planner_queue.take(job.id, job.version)
    assert planner_queue.take(job.id, job.version).job_id == job.id


def test_job_that_was_deleted_meanwhile_is_no_defect(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def think(job_id: str) -> VersionedDecision:
        raise JobNotFound(f"There is no job {job_id}.")

    assert PlannerQueue(think, lambda run: run()).find("gone", 1) is None
    assert not caplog.records


def test_many_orders_share_one_thread(world: World) -> None:
    later = Later()
    planner_queue = PlannerQueue(world.think, later.start)
    jobs = [world.submit() for _ in range(10)]
    assert all(planner_queue.find(job.id, job.version) is None for job in jobs)
    assert later.run() == 1
    assert all(planner_queue.find(job.id, job.version) is not None for job in jobs)


def test_thoughts_are_the_same_after_a_restart(world: World) -> None:
    world.tuning = ScriptedTuning([{"fuse_grad_size_in_MB": 8.0}, {"fuse_grad_size_in_MB": 4.0}])
    world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    world.measure(place, agent)
    before = world.planner_queue.order(place.job_id).result()
    world.restart()
    after = world.planner_queue.order(place.job_id).result()
    assert before is not after
    assert before.decision == after.decision


def test_what_is_thought_for_a_session_moves_no_job_on(world: World) -> None:
    told: list[bool] = []
    job = world.submit()
    planner_queue = PlannerQueue(world.think, lambda run: run(), lambda: told.append(True))
    planner_queue.order(job.id)
    assert told == [True]
    agent = world.register("one")
    world.start_session(agent)
    planner_queue.order(job.id)
    assert told == [True]


def test_only_what_was_found_is_told(world: World) -> None:
    told: list[bool] = []
    job = world.submit()
    fails = [True]

    def think(job_id: str) -> VersionedDecision:
        if fails.pop() if fails else False:
            raise ZeroDivisionError
        return world.think(job_id)

    planner_queue = PlannerQueue(think, lambda run: run(), lambda: told.append(True))
    assert planner_queue.find(job.id, job.version) is None
    assert told == []
    assert planner_queue.find(job.id, job.version) is not None
    assert told == [True]
