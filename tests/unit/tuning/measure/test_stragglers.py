"""Nodes that hold the others up are named, and those that do not are left in peace."""

from dataclasses import replace
from statistics import median

import pytest

from advisor.protocol.measured.results import BlockResult, LateRank, Phases
from advisor.protocol.measured.telemetry import DeviceTelemetry, FlagKind, NodeTelemetry, Spread
from advisor.protocol.measured.trials import Block, BlockPlan, BlockState, Session, SessionState
from advisor.protocol.nodes.cluster import Cluster, Device, Node
from advisor.tuning.measure.stragglers import describe_late, flag_nodes
from tests.unit.tuning.simulated_cluster import START

AGENTS = ("a0", "a1")
SESSION = Session(
    id="s", job_id="j", generation=1, state=SessionState.RUNNING, agents=AGENTS, created_at=START
)
NODE = Node(hostname="n", cpu_count=8, memory_bytes=1)


def even(value: float) -> Spread:
    return Spread(mean=value, median=value, max=value)


def gpu(index: int, clock: float = 1980.0, busy: float = 0.95, **throttled: float) -> DeviceTelemetry:
    return DeviceTelemetry(
        index=index, busy=even(busy), memory_bytes=1, sm_clock_mhz=clock, throttled=throttled
    )


def node(agent: str, *devices: DeviceTelemetry, gap_s: float = 0.0) -> NodeTelemetry:
    return NodeTelemetry(
        agent=agent, samples=3, cpu=even(0.5), session_cpu=even(0.5), memory_bytes=1, network_bytes_per_s=0.0,
        devices=devices, gap_s=gap_s,
    )  # fmt: skip


def find(work_s: tuple[float, ...]) -> LateRank | None:
    """As the ranks do: who works a tenth of the step of 100 ms longer than the others, in forward."""
    rank = work_s.index(max(work_s))
    more_s = max(work_s) - median(work_s[:rank] + work_s[rank + 1 :])
    return LateRank(rank=rank, waited_s=more_s, part="forward_s", excess_s=more_s) if more_s >= 0.01 else None


def block(work_s: tuple[float, ...] = (0.05,) * 4, *nodes: NodeTelemetry) -> Block:
    return Block(
        id="b", session_id="s", trial_number=0, ordinal=0, race=1, state=BlockState.DONE, telemetry=nodes,
        plan=BlockPlan(block_id="b", trial_number=0), issued_at=START,
        result=BlockResult(
            steps=1, step_time_s=(0.1,), samples_per_step=1, wall_s=0.1, per_rank_work_s=work_s, late=find(work_s),
            phases=Phases(forward_s=0.02, backward_s=0.03, exposed_comm_s=0.05),
        ),
    )  # fmt: skip


def flag(*blocks: Block, names: tuple[str, str] = ("H200", "H200")) -> tuple:
    nodes = tuple(
        NODE.model_copy(
            update={"devices": tuple(Device(index=i, uuid=str(i), name=name, memory_bytes=1) for i in (0, 1))}
        )
        for name in names
    )
    return flag_nodes(blocks, (SESSION,), 2, Cluster(nodes=nodes))


def test_equal_ranks_and_clocks_are_left_in_peace() -> None:
    nodes = (node("a0", gpu(0), gpu(1, 1950.0)), node("a1", gpu(0), gpu(1, SwPowerCap=1.0)))
    assert flag(*[block((0.05, 0.052, 0.05, 0.051), *nodes)] * 5) == ()
    assert flag() == ()


def test_rank_that_works_longer_is_named_with_its_node() -> None:
    (found,) = flag(*[block((0.05, 0.05, 0.05, 0.07))] * 3)
    assert (found.agent, found.kind, found.rank) == ("a1", FlagKind.STRAGGLER, 3)
    assert "Rank 3 on a1 is late: the others wait 20.0 ms of each 100.0 ms step for it" in found.sentence
    assert "20.0 ms more than they in forward" in found.sentence


def test_a_late_rank_that_saves_beside_its_steps_is_not_told_to_look_for_other_load() -> None:
    late = LateRank(rank=0, waited_s=0.1, part="stalls_s", excess_s=0.1, saves_beside=0.6)
    assert "in 60 % of the steps a thread of its own saves: torch.save" in describe_late(late, 0.9)
    assert "other load" not in describe_late(late, 0.9)
    assert "other load" in describe_late(replace(late, saves_beside=0.1), 0.9)
    assert "torch.save" not in describe_late(replace(late, part="data_wait_s"), 0.9)


def test_rank_of_two_is_compared_with_the_other_one() -> None:
    found = flag_nodes([block((0.02, 0.035))], (SESSION,), 1, Cluster(nodes=(NODE, NODE)))
    assert [(f.agent, f.kind) for f in found] == [("a1", FlagKind.STRAGGLER)]


def test_noise_that_hits_one_rank_after_the_other_names_nobody() -> None:
    works = [tuple(0.07 if index == slow else 0.05 for index in range(4)) for slow in range(4)]
    assert flag(*[block(work) for work in works]) == ()


@pytest.mark.parametrize(("lagging", "found"), [(4, 1), (3, 1), (2, 0)])
def test_a_straggler_lags_in_three_of_four_blocks(lagging: int, found: int) -> None:
    slow, even_works = (0.05, 0.05, 0.05, 0.07), (0.05,) * 4
    assert len(flag(*[block(slow)] * lagging, *[block(even_works)] * (4 - lagging))) == found


def test_the_same_rank_that_lags_by_less_than_a_tenth_of_the_step_is_no_straggler() -> None:
    assert flag(*[block((0.05, 0.05, 0.05, 0.059))] * 4) == ()


def test_results_of_other_launches_than_the_known_ones_name_nobody() -> None:
    assert flag(block((0.05, 0.2))) == ()


@pytest.mark.parametrize("reason", ["HwThermalSlowdown", "SwThermalSlowdown", "HwPowerBrakeSlowdown"])
def test_hot_device_is_named_with_its_clock_and_its_peers(reason: str) -> None:
    nodes = (
        node("a0", gpu(0), gpu(1)),
        node("a1", gpu(0), gpu(1, 1200.0, HwSlowdown=0.85, **{reason: 0.85})),
    )
    (found,) = flag(block((0.05,) * 4, *nodes))
    assert (found.agent, found.kind) == ("a1", FlagKind.THROTTLED)
    assert (
        f"GPU 1 of a1 ran with reduced clocks in 85 % of the samples: {reason} (1200 MHz, " in found.sentence
    )
    assert "1980 MHz on the other GPUs" in found.sentence


def test_slow_clock_without_a_reason_is_named_only_among_working_devices_of_one_kind() -> None:
    slow = (node("a0", gpu(0), gpu(1)), node("a1", gpu(0), gpu(1, 1500.0)))
    (found,) = flag(block((0.05,) * 4, *slow))
    assert found.kind is FlagKind.SLOW_CLOCK
    assert "GPU 1 of a1" in found.sentence
    idle = (node("a0", gpu(0), gpu(1)), node("a1", gpu(0), gpu(1, 300.0, busy=0.0)))
    assert flag(block((0.05,) * 4, *idle)) == ()
    other = (node("a0", gpu(0), gpu(1)), node("a1", gpu(0, 1300.0), gpu(1, 1310.0)))
    assert flag(block((0.05,) * 4, *other), names=("H200", "L4")) == ()


def test_node_whose_nvml_did_not_answer_is_said_to_be_unobserved() -> None:
    (found,) = flag(block((0.05,) * 4, node("a0", gap_s=12.0), node("a1", gap_s=0.5)))
    assert (found.agent, found.kind) == ("a0", FlagKind.UNOBSERVED)
    assert "12 s" in found.sentence
