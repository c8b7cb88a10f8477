"""When the knobs of data reading and of sharded models matter, and what their rules of thumb say."""

from dataclasses import replace

import pytest

from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import KnobContext
from advisor.protocol.knobs.strategy import DistributedStrategy
from advisor.protocol.nodes.cluster import Cluster, DeviceKind, Node
from advisor.protocol.training.workload import WorkloadFacts


def make_context(
    cpus: int = 16,
    device: DeviceKind = DeviceKind.CUDA,
    loader: bool = True,
    sharding: str = "",
    nodes: int = 1,
    per_node: int = 2,
    shard_ranks: int = 0,
) -> KnobContext:
    facts = WorkloadFacts(
        backend="nccl" if device is DeviceKind.CUDA else "gloo", device=device, world_size=nodes * per_node,
        local_world_size=per_node, nodes=nodes, gradient_bytes=2**20, parameter_tensors=4,
        layers=2, batch_size_per_rank=8, sharding=sharding, shard_ranks=shard_ranks or nodes * per_node,
        dataloader={"num_workers": 0, "prefetch_factor": None, "pin_memory": False} if loader else None,
    )  # fmt: skip
    cluster = Cluster(nodes=(Node(hostname="n0", cpu_count=cpus, memory_bytes=2**33),))
    return KnobContext(
        facts=facts, cluster=cluster, baseline=DistributedStrategy().values(), catalogue=CATALOGUE
    )


def reads_with(module: str) -> KnobContext:
    context = make_context(loader=False)
    return replace(context, facts=context.facts.model_copy(update={"software": {module: "1.50.0"}}))


OVERLAPPING = (
    "sharding_forward_prefetch",
    "sharding_backward_prefetch",
    "sharding_separate_reduction",
    "sharding_reduce_buffers",
)
ON_CPUS = make_context(device=DeviceKind.CPU, sharding="fully_shard")


@pytest.mark.parametrize(
    ("cpus", "workers", "grid"),
    [(16, 7, (0, 1, 2, 4, 7, 8, 16)), (2, 1, (0, 1, 2)), (128, 16, (0, 1, 2, 4, 8, 16))],
)
def test_workers_leave_one_cpu_of_a_ranks_share_to_the_training(
    cpus: int, workers: int, grid: object
) -> None:
    knob, context = CATALOGUE["loader_num_workers"], make_context(cpus)
    assert knob.rule(context)[0].value == workers
    assert knob.grid is not None
    assert knob.grid(context) == grid


@pytest.mark.parametrize(
    ("name", "context", "words"),
    [
        ("loader_num_workers", make_context(), None),
        ("loader_num_workers", make_context(loader=False), "no batches through a torch DataLoader"),
        ("loader_num_workers", reads_with("nvidia.dali"), "prefetch_queue_depth"),
        ("loader_pin_memory", reads_with("nvidia.dali"), "NVIDIA DALI"),
        ("loader_num_workers", reads_with("torchdata.nodes"), "ParallelMapper has num_workers"),
        ("loader_pin_memory", make_context(), None),
        ("loader_pin_memory", make_context(device=DeviceKind.CPU), "a matter of GPUs"),
        ("loader_persistent_workers", make_context(), "cannot be measured in a trial"),
        ("sharding_stage", make_context(), "not sharded"),
        ("sharding_stage", make_context(sharding="fully_shard"), None),
        *((name, make_context(), "not sharded") for name in OVERLAPPING),
        *((name, make_context(sharding="fully_shard"), None) for name in OVERLAPPING),
        *((name, ON_CPUS, "there is nothing to overlap") for name in OVERLAPPING),
        ("sharding_overlap", make_context(), "not sharded"),
        ("sharding_overlap", make_context(sharding="fully_shard"), "beside the backward always"),
        ("sharding_overlap", make_context(sharding="DeepSpeed"), None),
        (
            "sharding_overlap",
            make_context(device=DeviceKind.CPU, sharding="DeepSpeed"),
            "there is nothing to overlap",
        ),
        ("sharding_group_memory", make_context(), "not sharded"),
        ("sharding_group_memory", make_context(sharding="fully_shard"), None),
        ("sharding_group_memory", ON_CPUS, "communicates over gloo"),
        ("sharding_gather_ranks", make_context(), "not sharded"),
        ("sharding_gather_ranks", make_context(sharding="fully_shard"), "runs on one node"),
        ("sharding_gather_ranks", make_context(sharding="fully_shard", nodes=2), None),
        (
            "sharding_gather_ranks",
            make_context(sharding="fully_shard", nodes=2, per_node=1),
            "holds one rank",
        ),
        (
            "sharding_gather_ranks",
            make_context(sharding="fully_shard", nodes=2, shard_ranks=2),
            "inside a node",
        ),
        (
            "sharding_gather_ranks",
            make_context(sharding="fully_shard", nodes=4, shard_ranks=3),
            "do not split",
        ),
    ],
)
def test_a_knob_is_available_where_it_can_act(name: str, context: KnobContext, words: str | None) -> None:
    sentence = CATALOGUE[name].unavailable_because(context)
    assert (sentence is None) is (words is None)
    assert words is None or words in str(sentence)


def test_prefetching_is_idle_without_workers() -> None:
    idle = CATALOGUE["loader_prefetch_factor"].inactive_because
    assert idle(DistributedStrategy().values()) == "The loader has no workers."
    assert idle(DistributedStrategy.from_changes({"loader_num_workers": 2}).values()) is None


def test_gathering_among_fewer_ranks_is_tried_inside_nodes() -> None:
    context = make_context(sharding="fully_shard", nodes=2, per_node=8)
    knob = CATALOGUE["sharding_gather_ranks"]
    assert knob.grid is not None
    assert knob.grid(context) == (0, 8)
    assert [rule.value for rule in knob.rule(context)] == [8]


def test_a_scripts_own_depth_is_among_those_tried() -> None:
    context = make_context(sharding="fully_shard")
    own = replace(context, baseline={**context.baseline, "sharding_forward_prefetch": 7})
    grid = CATALOGUE["sharding_forward_prefetch"].grid
    assert grid is not None
    assert (grid(context), grid(own)) == ((0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 7))


@pytest.mark.parametrize("name", ["sharding_backward_prefetch", "sharding_gather_ranks"])
def test_nothing_is_gathered_again_where_parameters_are_kept(name: str) -> None:
    idle = CATALOGUE[name].inactive_because
    assert idle(DistributedStrategy().values()) is None
    assert "stay gathered" in str(idle(DistributedStrategy.from_changes({"sharding_stage": 2}).values()))
