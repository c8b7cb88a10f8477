"""What the services promise about several gangs of one job, whoever decides what they measure."""

from advisor.protocol.asked.jobs import JobState
from advisor.protocol.measured.messages import Assignment, HelloReport, Trouble
from advisor.protocol.measured.trials import Outcome, SessionState
from advisor.services.measuring import sessions
from tests.unit.services.scripted_tuning import ScriptedTuning, make_facts, make_node
from tests.unit.services.world import World

SIZES = [{"fuse_grad_size_in_MB": float(size)} for size in (1, 2, 4, 8)]


def begin_search(world: World, name: str = "one", **fields: object) -> tuple[str, str, Assignment]:
    """A job of two gangs whose first session has measured the baseline and one strategy."""
    world.tuning = ScriptedTuning(SIZES)
    job = world.submit(**{"gangs": 2} | fields)
    agent = world.register(name)
    (place,) = world.start_session(agent)
    for _ in range(2):
        world.measure(place, agent)
    return job.id, agent, place


def test_idle_agent_joins_and_each_gang_is_told_another_strategy(world: World) -> None:
    job_id, one, first = begin_search(world)
    two = world.register("two")
    (second,) = world.start_session(two)
    assert (second.job_id, second.generation) == (job_id, 2)
    mine, theirs = world.begin(first, one), world.begin(second, two)
    assert [race.arms[0].overrides for race in (mine, theirs)] == [SIZES[1], SIZES[2]]
    assert world.begin(first, one) == mine


def test_no_gang_joins_before_the_search_or_beyond_the_number_that_was_asked_for(world: World) -> None:
    world.tuning = ScriptedTuning(SIZES)
    job = world.submit(gangs=2)
    one = world.register("one")
    for name in ("two", "three"):
        world.register(name)
    world.start_session(one)
    world.keep_up()
    assert len(world.history(job.id).sessions) == 1
    world.cancel(job.id)


def test_nodes_unlike_those_of_the_first_gang_are_left_alone(world: World) -> None:
    job_id, _, _ = begin_search(world)
    larger = make_node("large").model_copy(update={"cpu_count": 64})
    world.register("large", larger)
    world.keep_up()
    assert len(world.history(job_id).sessions) == 1
    world.register("like")
    world.keep_up()
    assert world.history(job_id).sessions[-1].agents == ("like",)


def test_trouble_of_one_gang_fails_no_job_that_another_one_measures(world: World) -> None:
    job_id, one, first = begin_search(world)
    two = world.register("two")
    (second,) = world.start_session(two)
    trouble = Trouble(code="launch_failed", sentence="torchrun is not installed on this node.")
    with world.work() as work:
        sessions.hear_trouble(work, second.session_id, two, trouble, world.now)
    world.end(second, two, Outcome.CRASHED)
    world.tuning = ScriptedTuning(SIZES[:2])
    world.measure(first, one)
    assert world.next(first, one).end_because
    world.end(first, one)
    world.keep_up()
    assert world.job(job_id).state is JobState.FINISHED


def test_gang_of_an_edited_script_ends_the_job_that_another_one_measures(world: World) -> None:
    job_id, one, first = begin_search(world)
    two = world.register("two")
    (second,) = world.start_session(two)
    for place, agent, digest in ((first, one, "1"), (second, two, "2")):
        facts = make_facts().model_copy(update={"sources": {"train.py": digest}})
        with world.work() as work:
            hello = HelloReport(generation=place.generation, facts=facts, baseline={})
            sessions.hear_hello(work, place.session_id, agent, hello, world.now)
    assert world.beat(second, two).state is SessionState.ENDING
    assert world.beat(first, one).state is SessionState.RUNNING
    world.end(second, two)
    world.end(first, one)
    world.keep_up()
    assert "train.py changed" in world.job(job_id).state_reason


def test_silence_of_one_gang_leaves_the_other_its_lease(world: World) -> None:
    job_id, one, first = begin_search(world)
    two = world.register("two")
    (second,) = world.start_session(two)
    world.begin(second, two)
    for _ in range(5):
        world.wait(10)
        world.beat(first, one)
    world.keep_up()
    states = [session.state for session in world.history(job_id).sessions[:2]]
    assert states == [SessionState.RUNNING, SessionState.LOST]
    assert world.job(job_id).state is JobState.RUNNING


def test_job_is_cancelled_when_its_last_gang_is_gone(world: World) -> None:
    job_id, one, first = begin_search(world)
    two = world.register("two")
    (second,) = world.start_session(two)
    world.cancel(job_id)
    world.end(first, one, Outcome.CANCELLED)
    assert world.job(job_id).state is JobState.CANCELLING
    world.end(second, two, Outcome.CANCELLED)
    assert world.job(job_id).state is JobState.CANCELLED


def test_further_gang_waits_for_nobody_and_keeps_no_agents_for_itself(world: World) -> None:
    job_id, _, _ = begin_search(world, nodes=1)
    version = world.job(job_id).version
    world.keep_up()
    assert world.job(job_id).version == version
    other = world.submit()
    world.register("two")
    world.keep_up()
    assert len(world.history(other.id).sessions) == 1
