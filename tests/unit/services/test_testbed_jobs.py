"""Jobs for a testbed and jobs for real nodes: neither is measured on the other's agents."""

from advisor.protocol.nodes.testbed import Testbed
from tests.unit.services.scripted_tuning import make_node
from tests.unit.services.world import World

WANTED = Testbed(nodes=2, rate="1gbit")


def register_on(world: World, name: str, testbed: Testbed) -> str:
    return world.register(name, make_node(name).model_copy(update={"testbed": testbed}))


def named(name: str) -> Testbed:
    return WANTED.model_copy(update={"name": name})


def test_job_for_a_testbed_waits_for_its_agents_and_says_how_to_start_them(world: World) -> None:
    world.register("real-1")
    world.register("real-2")
    register_on(world, "slow-1", Testbed(nodes=2, rate="1mbit"))
    job = world.submit(nodes=2, testbed=WANTED)
    world.keep_up()
    reason = world.job(job.id).state_reason
    assert "Waiting for 2 idle agents of the testbed nodes=2,rate=1gbit: 0 connected" in reason
    assert "advisor testbed nodes=2,rate=1gbit" in reason


def test_gang_of_a_testbed_job_is_never_taken_from_two_testbeds(world: World) -> None:
    first = register_on(world, "a-1", named("a"))
    register_on(world, "b-1", named("b"))
    job = world.submit(nodes=2, testbed=WANTED)
    world.keep_up()
    assert world.poll(first) is None
    assert "1 connected" in world.job(job.id).state_reason
    second = register_on(world, "a-2", named("a"))
    world.start_session(first, second)
    cluster = world.job(job.id).cluster
    assert [node.hostname for node in cluster.nodes] == ["a-1", "a-2"]
    assert cluster.describe() == "2 nodes × 2 CPUs (a testbed on one machine, links shaped to 1gbit)"


def test_job_for_real_nodes_takes_none_of_a_testbed(world: World) -> None:
    shaped = register_on(world, "a-1", named("a"))
    job = world.submit()
    world.keep_up()
    assert world.poll(shaped) is None
    assert "0 connected" in world.job(job.id).state_reason
    real = world.register("real")
    world.start_session(real)
    assert world.poll(shaped) is None


def test_agents_kept_for_a_large_job_are_those_of_its_own_kind(world: World) -> None:
    one = register_on(world, "a-1", named("a"))
    two = register_on(world, "a-2", named("a"))
    busy = world.submit(nodes=2, testbed=WANTED)
    world.start_session(one, two)
    world.submit(nodes=2, testbed=WANTED)
    real = world.register("real")
    world.submit()
    world.start_session(real)
    assert world.job(busy.id).cluster.nodes[0].hostname == "a-1"
