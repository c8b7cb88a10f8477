"""Jobs and spaces for tests of the search: two nodes of two ranks, as a runtime described them."""

from datetime import UTC, datetime

from advisor.protocol.asked.jobs import Job, JobSpec, JobState
from advisor.protocol.nodes.cluster import Cluster, DeviceKind, Node
from advisor.protocol.training.workload import Workload, WorkloadFacts
from advisor.tuning.space.space import Space, build_space

START = datetime(2026, 1, 1, tzinfo=UTC)


def make_facts(**fields: object) -> WorkloadFacts:
    """Two nodes of two ranks with 40 MB of gradients over gloo."""
    values: dict[str, object] = {
        "backend": "gloo", "device": DeviceKind.CPU, "world_size": 4, "local_world_size": 2, "nodes": 2,
        "gradient_bytes": 40 * 2**20, "parameter_tensors": 60, "layers": 30, "batch_size_per_rank": 16,
    }  # fmt: skip
    return WorkloadFacts.model_validate({**values, **fields})


def make_cluster(cpus: int = 8) -> Cluster:
    """Two nodes without accelerators."""
    return Cluster(nodes=tuple(Node(hostname=f"n{i}", cpu_count=cpus, memory_bytes=2**33) for i in range(2)))


def make_spec(**fields: object) -> JobSpec:
    """A job over two nodes."""
    return JobSpec.model_validate(
        {"workload": Workload(command=("torchrun", "train.py")), "nodes": 2, **fields}
    )


def make_job(spec: JobSpec | None = None, **fields: object) -> Job:
    """A running job whose runtime has said hello."""
    values: dict[str, object] = {
        "id": "job1", "spec": spec or make_spec(), "state": JobState.RUNNING,
        "created_at": START, "facts": make_facts(), "cluster": make_cluster(),
        "baseline": {"fuse_grad_size_in_MB": 25.0, "last_comm_group_size_MB": 1.0, "sync_nccl_allreduce": False},
    }  # fmt: skip
    return Job.model_validate({**values, **fields})


def make_space(job: Job | None = None, **fields: object) -> Space:
    """The space of a job of these fields of the specification, nothing timed."""
    job = job or make_job(make_spec(**fields))
    assert job.facts is not None
    return build_space(job, job.facts, [])
