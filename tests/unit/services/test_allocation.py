"""Who gets which agents: gangs, and what is kept for those that wait, without a database."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from advisor.protocol.nodes.cluster import Device, Node
from advisor.services.allocation.allotment import Allotment
from advisor.services.allocation.demand import Asked, Demand, Place, Supply, find_kind


def agent(name: str, gpus: Sequence[str] = (), pool: str = "", busy: bool = False, **more: object) -> Supply:
    """An agent; a busy one holds a session. Other words are its labels or fields."""
    fields = {key: more.pop(key) for key in ("stays_s", "objection", "away") if key in more}
    signed_only = bool(more.pop("signed_only", False))
    devices = tuple(Device(index=i, uuid=str(i), name=gpu, memory_bytes=1) for i, gpu in enumerate(gpus))
    labels = {key: str(value) for key, value in more.items()}
    node = Node(
        hostname=name,
        cpu_count=2,
        memory_bytes=1,
        devices=devices,
        pool=pool,
        labels=labels,
        signed_only=signed_only,
    )
    return Supply(id=name, name=name, node=node, is_idle=not busy, **fields)  # type: ignore[arg-type]


def want(job_id: str = "j", nodes: int = 1, lasts_s: float = 600, **more: object) -> Demand:
    demand = {key: more.pop(key) for key in ("before", "kinds", "is_ready") if key in more}
    return Demand(job_id, Asked(nodes, **more), lasts_s, **demand)  # type: ignore[arg-type]


def place(agents: Sequence[Supply], *demands: Demand) -> list[Place]:
    allotment = Allotment(agents)
    return [allotment.place(demand) for demand in demands]


def gangs(agents: Sequence[Supply], *demands: Demand) -> list[tuple[str, ...]]:
    return [found.gang for found in place(agents, *demands)]


def test_jobs_are_measured_in_the_pool_that_they_name_and_on_no_other() -> None:
    agents = [agent("a", pool="gpu"), agent("b")]
    assert gangs(agents, want(pool="gpu"), want()) == [("a",), ("b",)]
    missing, every = place(agents[:1], want(pool="cpu"), want())
    assert missing.waits == (
        "Waiting for 1 idle agent in the pool cpu: 0 connected, 0 idle. "
        "There is no pool of that name: agents are in gpu."
    )
    assert "Every agent is in a pool, and the job names none: gpu." in every.waits
    (nothing,) = place([], want(pool="cpu"))
    assert nothing.waits.endswith("There is no pool of that name: start agents with `--pool cpu`.")


def test_nodes_have_every_label_that_the_job_needs() -> None:
    agents = [agent("a", disk="nvme"), agent("b", disk="nvme", room=2), agent("c", room=2)]
    needs = (("disk", "nvme"), ("room", "2"))
    assert gangs(agents, want(needs=needs)) == [("b",)]
    (waits,) = place(agents, want(nodes=2, needs=needs))
    assert "2 idle agents with disk=nvme, room=2: 1 connected, 1 idle. Start" in waits.waits


def test_gang_is_formed_of_one_rack_the_smallest_that_is_large_enough() -> None:
    agents = [
        agent("a", rack=1),
        agent("b", rack=2),
        agent("c", rack=2),
        agent("d", rack=3),
        agent("e", rack=3),
        agent("f", rack=3),
    ]
    assert gangs(agents, want(nodes=2), want(nodes=3), want(nodes=1)) == [
        ("b", "c"),
        ("d", "e", "f"),
        ("a",),
    ]


def test_gang_that_no_rack_holds_spreads_over_as_few_as_possible_with_neighbours_side_by_side() -> None:
    agents = [
        agent("a", rack=1),
        agent("b", rack=2),
        agent("c", rack=1),
        agent("d", rack=3),
        agent("e", rack=3),
    ]
    assert gangs(agents, want(nodes=4)) == [("a", "c", "d", "e")]


def test_gang_waits_for_one_rack_where_the_job_asks_for_that() -> None:
    agents = [agent("a", rack=1), agent("b", rack=2), agent("c", rack=2, busy=True), agent("d"), agent("e")]
    (waits,) = place(agents, want(nodes=2, within="rack"))
    assert waits.gang == ()
    assert waits.waits == "Waiting for 2 idle agents with one rack: 2 connected, 1 idle."
    (too_many,) = place(agents, want(nodes=3, within="rack"))
    assert too_many.waits.endswith(
        "There are 3, but nodes of a gang have the same GPUs and one value of rack."
    )


def test_gang_never_mixes_gpu_models_unless_asked() -> None:
    agents = [agent("a", ["H100"]), agent("b", ["A100"]), agent("c", ["A100"]), agent("d")]
    assert gangs(agents, want(nodes=2)) == [("b", "c")]
    (waits,) = place(agents[:2], want(nodes=2))
    assert waits.waits.endswith("There are 2, but nodes of a gang have the same GPUs.")
    assert gangs(agents[:2], want(nodes=2, mixed_gpus=True)) == [("a", "b")]
    assert gangs([agent("a", ["H100"] * 4), agent("b", ["H100"] * 8)], want(nodes=2)) == [()]


def test_gang_is_as_it_was_before_and_else_on_nodes_like_before() -> None:
    agents = [agent("a", ["H100"]), agent("b", ["H100"]), agent("c", ["A100"]), agent("d", ["A100"])]
    assert gangs(agents, want(nodes=2, before=("d", "c"))) == [("d", "c")]
    a100 = frozenset({find_kind(agents[3].node)})
    assert gangs(agents, want(before=("gone",), kinds=a100)) == [("c",)]


def test_node_that_is_set_aside_is_taken_only_where_others_are_not_enough() -> None:
    agents = [agent("a", objection="a is set aside: it is throttled."), agent("b")]
    assert gangs(agents, want()) == [("b",)]
    taken, waits = place(agents, want("first"), want("second"))
    assert taken.gang == ("b",)
    assert waits.waits.endswith("a is set aside: it is throttled.")
    assert gangs(agents, want(nodes=2)) == [("b", "a")]
    assert gangs(agents[:1], want()) == [("a",)]


def test_agents_are_kept_for_a_job_that_waits_for_a_busy_one() -> None:
    agents = [agent("a"), agent("b", busy=True)]
    large, small = place(agents, want("large", nodes=2), want("small"))
    assert large.waits == "Waiting for 2 idle agents: 2 connected, 1 idle."
    assert small.waits == (
        "Waiting for 1 idle agent: 2 connected, 1 idle, kept for job large. 1 job comes first."
    )


def test_job_that_asks_for_more_than_there_are_keeps_nothing() -> None:
    assert gangs([agent("a")], want("large", nodes=2), want("small")) == [(), ("a",)]


def test_job_that_is_thought_about_keeps_its_place() -> None:
    first, second = place([agent("a")], want("first", is_ready=False), want("second"))
    assert (first.gang, second.gang) == ((), ())


def test_agents_that_a_waiting_job_cannot_use_go_to_later_ones() -> None:
    agents = [agent("a"), agent("b", busy=True), agent("c", disk="nvme"), agent("d", pool="gpu")]
    large = want("large", nodes=2, needs=(("disk", "nvme"),))
    nvme = [*agents, agent("e", disk="nvme", busy=True)]
    assert gangs(nvme, large, want("small"), want("gpu", pool="gpu")) == [(), ("a",), ("d",)]


def test_agents_that_leave_before_the_session_must_be_over_are_not_taken() -> None:
    agents = [agent("a", stays_s=599), agent("b", stays_s=600)]
    assert gangs(agents, want(lasts_s=600)) == [("b",)]
    (waits,) = place(agents, want(nodes=2, lasts_s=600))
    assert "A session of this job may last 10 min, and before that a will have left" in waits.waits


def test_drained_agents_are_not_taken_and_whoever_waits_reads_why() -> None:
    (waits,) = place([agent("a", away="a is drained: its fan.")], want())
    assert waits.waits.endswith(
        "0 connected, 0 idle. Start `advisor-agent run` on more nodes. a is drained: its fan."
    )


def test_agents_that_start_signed_jobs_only_are_left_to_signed_jobs() -> None:
    agents = [agent("a", signed_only=True), agent("b")]
    assert gangs(agents, want("unsigned"), want("signed", signed=True)) == [("b",), ("a",)]
    assert gangs(agents, want(nodes=2, signed=True)) == [("a", "b")]


def test_unsigned_job_reads_which_agents_would_take_it_signed() -> None:
    agents = [agent("a", signed_only=True), agent("b", signed_only=True), agent("c"), agent("d", pool="gpu")]
    (waits,) = place(agents, want(nodes=2))
    assert waits.waits == (
        "Waiting for 2 idle agents: 1 connected, 1 idle. a, b start signed jobs only, and this one is not: submit it "
        "signed, `advisor tune --sign KEY`."
    )
    (waits,) = place([*agents[1:3], agent("e", signed_only=True, away="e is drained.")], want(nodes=3))
    assert "b starts signed jobs only" in waits.waits
    assert waits.waits.endswith("Start `advisor-agent run` on more nodes.")
    (waits,) = place(agents, want(nodes=5, signed=True))
    assert "signed" not in waits.waits
    (waits,) = place([agent("a", signed_only=True), agent("b", busy=True)], want())
    assert "signed" not in waits.waits


AGENTS = st.builds(
    agent,
    st.uuids().map(str),
    st.sampled_from(((), ("H100",), ("A100",))),
    st.sampled_from(("", "gpu")),
    st.booleans(),
    rack=st.sampled_from((1, 2)),
    stays_s=st.sampled_from((50.0, 1e6)),
    objection=st.sampled_from(("", "", "It is slow.")),
)
WANTED = st.builds(
    want,
    st.uuids().map(str),
    st.integers(1, 4),
    st.sampled_from((40.0, 400.0, 4000.0)),
    pool=st.sampled_from(("", "gpu")),
    within=st.sampled_from((None, "rack")),
    mixed_gpus=st.booleans(),
)


@given(agents=st.lists(AGENTS, max_size=12), demands=st.lists(WANTED, max_size=8))
def test_whole_gangs_or_none_of_idle_agents_that_fit_and_nothing_given_twice(
    agents: list[Supply], demands: list[Demand]
) -> None:
    known = {each.id: each for each in agents}
    given_away: list[str] = []
    for demand, found in zip(demands, place(agents, *demands), strict=True):
        gang = [known[agent_id] for agent_id in found.gang]
        assert len(gang) in {0, demand.asked.nodes}
        assert bool(gang) != bool(found.waits)
        assert all(each.is_idle and each.stays_s >= demand.lasts_s for each in gang)
        assert all(each.node.pool == demand.asked.pool for each in gang)
        if not demand.asked.mixed_gpus:
            assert len({tuple(device.name for device in each.node.devices) for each in gang}) <= 1
        if demand.asked.within:
            assert len({each.node.labels["rack"] for each in gang}) <= 1
        given_away += found.gang
    assert len(given_away) == len(set(given_away))


@given(agents=st.lists(AGENTS, max_size=12), demands=st.lists(WANTED, max_size=8))
def test_job_that_waits_for_busy_agents_loses_none_that_it_could_use_to_those_behind_it(
    agents: list[Supply], demands: list[Demand]
) -> None:
    found = place(agents, *demands)
    free = [replace(each, is_idle=True) for each in agents]
    for index, demand in enumerate(demands):
        (alone,) = place(free, demand)
        if alone.gang and not found[index].gang:
            later = {agent_id for after in found[index + 1 :] for agent_id in after.gang}
            assert not later & set(alone.gang)
