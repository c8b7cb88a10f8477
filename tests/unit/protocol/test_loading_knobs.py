"""When the knobs of data reading and of sharded models matter, and what their rules of thumb say."""

import pytest

from advisor.protocol.cluster import Cluster, DeviceKind, Node
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import KnobContext
from advisor.protocol.strategy import DistributedStrategy
from advisor.protocol.workload import WorkloadFacts


def make_context(
    cpus: int = 16, device: DeviceKind = DeviceKind.CUDA, loader: bool = True, sharding: str = ""
) -> KnobContext:
    facts = WorkloadFacts(
        backend="nccl", device=device, world_size=2, local_world_size=2, gradient_bytes=2**20, parameter_tensors=4,
        layers=2, batch_size_per_rank=8, sharding=sharding,
        dataloader={"num_workers": 0, "prefetch_factor": None, "pin_memory": False} if loader else None,
    )  # fmt: skip
    cluster = Cluster(nodes=(Node(hostname="n0", cpu_count=cpus, memory_bytes=2**33),))
    return KnobContext(facts=facts, cluster=cluster, baseline=DistributedStrategy().values())


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
        ("loader_pin_memory", make_context(), None),
        ("loader_pin_memory", make_context(device=DeviceKind.CPU), "a matter of GPUs"),
        ("loader_persistent_workers", make_context(), "cannot be measured in a trial"),
        ("sharding_stage", make_context(), "not sharded"),
        ("sharding_stage", make_context(sharding="fully_shard"), None),
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
