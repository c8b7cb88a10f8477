"""What is said beyond knobs: lines that wait, unequal parts of the data, the network under mixed precision."""

import pytest

from advisor.protocol.answers.advice import Diagnosis
from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import Phases
from advisor.protocol.measured.trials import Purpose, Trial
from advisor.protocol.nodes.cluster import Cluster, DeviceKind, Node
from advisor.protocol.training.workload import DdpFacts, HostRead
from advisor.tuning.explain.beyond_knobs import list_beyond_knobs
from tests.unit.tuning.simulated_cluster import START, make_job

PHASES = Phases(forward_s=0.01, backward_s=0.02, exposed_comm_s=0.01)


def say(
    changes: dict[str, Value] | None = None,
    cluster: Cluster | None = None,
    phases: Phases = PHASES,
    host_cores: float | None = None,
    **facts: object,
) -> str:
    job = make_job()
    assert job.facts is not None
    told = {"facts": job.facts.model_copy(update=facts), **({"cluster": cluster} if cluster else {})}
    trial = None
    if changes is not None:
        trial = Trial(
            number=1, purpose=Purpose.SEARCH, changes=Changes(changes), because="Tried.", created_at=START
        )
    diagnosis = Diagnosis(bound="communication", sentence="Communication is exposed.")
    return "\n".join(list_beyond_knobs(job.model_copy(update=told), trial, diagnosis, phases, host_cores))


def test_a_line_that_reads_the_loss_in_every_step_is_named_with_its_wait_and_the_way_out() -> None:
    reads = (
        HostRead(site="train.py:41", call="item", per_step=1.0, waited_s=0.0031),
        HostRead(site="train.py:60", call="__format__", per_step=0.1, waited_s=0.002),
    )
    told = say(host_reads=reads, step_time_s_hint=0.04)
    assert "train.py:41 reads a value off the device in every step (item)" in told
    assert "the host waits 3.1 ms of each 40.0 ms step there" in told
    assert "Read it every 30 steps" in told
    assert "train.py:60" not in told, "a log line now and then costs nothing worth a line"


def test_a_mode_for_compiled_models_that_slows_an_eager_one_is_told() -> None:
    assert "Take that setting out" in say(ddp=DdpFacts(reduces_one_by_one=True))
    assert "python_reducer" not in say()


def test_a_sharded_model_that_reduces_each_micro_batch_is_told_what_to_write() -> None:
    often = {"exchanges_per_step": 4, "microbatches_per_step": 4, "gradient_bytes": 2**22}
    told = say(**often, sharding="fully_shard", shard_ranks=2)
    assert "Gradients are reduced 4 times a step" in told
    assert "set_requires_gradient_sync(is_last)" in told
    assert "2 MiB more" in told
    assert "reduced" not in say(**often), "DDP has a knob for it, which was raced"
    assert "reduced" not in say(exchanges_per_step=1, microbatches_per_step=4, sharding="fully_shard")


@pytest.mark.parametrize(("counts", "is_told"), [((12, 12), False), ((12, 10, 12), True), ((), False)])
def test_unequal_parts_of_the_data_are_told_with_both_remedies(
    counts: tuple[int, ...], is_told: bool
) -> None:
    told = say(batches_per_rank=counts)
    assert ("Rank 1 reads 10 batches an epoch and rank 0 12" in told) == is_told
    assert ("Pad the shorter parts" in told and "the same number of batches" in told) == is_told


@pytest.mark.parametrize(
    ("rdma", "changes", "is_told"),
    [
        ((), {"amp": True}, True),
        (("mlx5_0",), {"amp": True}, False),
        ((), {}, False),
    ],
)
def test_tcp_is_named_once_mixed_precision_made_it_the_bottleneck(rdma, changes, is_told: bool) -> None:
    node = Node(hostname="a", cpu_count=2, memory_bytes=1, rdma=rdma)
    told = say(changes, Cluster(nodes=(node, node)))
    assert ("which is TCP" in told) == is_told


WAITING = Phases(forward_s=0.01, backward_s=0.02, data_wait_s=0.03)
LOADER = {"num_workers": 3}


@pytest.mark.parametrize(
    ("device", "host_cores", "changes", "is_told"),
    [
        (DeviceKind.CUDA, None, {}, True),
        (DeviceKind.CUDA, 3.6, {}, True),
        (DeviceKind.CUDA, 2.0, {}, True),
        # Four processes that keep less than two processors busy wait for storage: a GPU would wait as well.
        (DeviceKind.CUDA, 1.9, {}, False),
        (DeviceKind.CUDA, 2.0, {"loader_num_workers": 8}, False),
        (DeviceKind.CPU, 3.6, {}, False),
    ],
)
def test_preparing_batches_on_the_gpu_is_named_where_processors_are_short(
    device, host_cores, changes, is_told
) -> None:
    told = say(changes, phases=WAITING, host_cores=host_cores, device=device, dataloader=LOADER)
    assert "30.0 ms of each 60.0 ms step waits for data: give the DataLoader more workers" in told
    assert ("prepare batches on the GPU (NVIDIA DALI" in told) == is_told
    assert ("keep 3.6 busy" in told) == (is_told and host_cores == 3.6)


def test_who_reads_with_dali_is_told_of_its_pipeline() -> None:
    told = say(phases=WAITING, device=DeviceKind.CUDA, software={"nvidia.dali": "1.50.0"})
    assert "more threads (num_threads)" in told
    assert "prefetch_queue_depth" in told
    assert "DataLoader" not in told


@pytest.mark.parametrize(("software", "is_told"), [({"torchrec": "1.8.0"}, True), ({}, False)])
def test_who_trains_with_torchrec_is_told_how_to_race_its_plans(
    software: dict[str, str], is_told: bool
) -> None:
    told = say(software=software)
    assert ("python -m agent.workloads.torchrec_plans TRAIN.PY:FUNCTION --ranks 4" in told) == is_told


@pytest.mark.parametrize(("backend", "is_told"), [("nccl", True), ("gloo", False)])
def test_what_keeps_nccl_from_the_right_network_is_told_of_the_nodes_that_use_it(
    backend: str, is_told: bool
) -> None:
    nodes = tuple(
        Node(hostname=name, cpu_count=2, memory_bytes=1, network=("mlx5_0 is up.",)) for name in "ab"
    )
    told = say(cluster=Cluster(nodes=nodes), backend=backend)
    assert ("a: mlx5_0 is up.\nb: mlx5_0 is up." in told) == is_told
