"""A factory of advised jobs, for the tests of what is exported from them."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import pytest

from advisor.protocol.answers.advice import (
    Action,
    Advice,
    Cost,
    Diagnosis,
    Interval,
    KnobReason,
    Provenance,
    Verdict,
)
from advisor.protocol.asked.jobs import Job, JobSpec, JobState
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.strategy import DistributedStrategy
from advisor.protocol.measured.results import Phases
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.protocol.training.workload import Workload, WorkloadFacts, WorkloadKind

SCRIPT_AS_IT_STANDS: dict[str, Value] = {
    **DistributedStrategy().values(),
    "fuse_grad_size_in_MB": 25.0,
    "last_comm_group_size_MB": 1.0,
    "sync_nccl_allreduce": False,
}
"""What the runtime observes of a script with stock DDP."""


def advise(
    changes: Mapping[str, Value],
    *,
    backend: str = "gloo",
    world_size: int = 2,
    nodes: int = 1,
    name: str = "demo",
    command: tuple[str, ...] = ("torchrun", "--nproc-per-node", "2", "train.py", "--epochs", "3"),
    working_dir: str = ".",
    environment: Mapping[str, str] | None = None,
    kind: WorkloadKind = WorkloadKind.PYTORCH,
    knobs: Mapping[str, Value] | None = None,
    own: Sequence[str] = (),
    script: Mapping[str, Value] | None = None,
) -> tuple[Advice, Job]:
    """Return an advice for `changes` (none: keep) and its finished job; `script` is what else was observed of it."""
    finished = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)
    workload = Workload(
        kind=kind,
        command=command,
        working_dir=working_dir,
        environment=dict(environment or {}),
        knobs=dict(knobs or {}),
        own=tuple(own),
    )
    baseline = {
        **SCRIPT_AS_IT_STANDS,
        **(script or {}),
        **{knob.name: knob.own_value for knob in workload.own},
    }
    job = Job(
        id="job7",
        spec=JobSpec(name=name, workload=workload, nodes=nodes),
        state=JobState.FINISHED,
        created_at=finished,
        finished_at=finished,
        facts=WorkloadFacts(
            backend=backend,
            device=DeviceKind.CUDA if backend == "nccl" else DeviceKind.CPU,
            world_size=world_size,
            local_world_size=world_size // nodes,
            nodes=nodes,
            gradient_bytes=10_000_000,
            parameter_tensors=20,
            layers=10,
            batch_size_per_rank=8,
        ),
    )
    changed = {
        knob: Provenance.TRANSLATED if knob != "num_threads" else Provenance.MEASURED for knob in changes
    }
    gain = Interval(ratio=1.184, low=1.159, high=1.207, rounds=8, sessions=2)
    advice = Advice(
        job_id=job.id,
        verdict=Verdict.CHANGE if changes else Verdict.KEEP,
        headline=f"{gain.describe()} throughput." if changes else "No reliable gain: keep your defaults.",
        action=Action.USE if changes else Action.KEEP,
        what_to_do="Use the strategy." if changes else "Change nothing.",
        allowed=Effect.CONVERGENCE,
        strategy={**baseline, **changes},
        baseline=baseline,
        changes=dict(changes),
        own=workload.own,
        provenance={knob: changed.get(knob, Provenance.CARRIED) for knob in baseline},
        gain=gain if changes else None,
        baseline_samples_per_s=100.0,
        strategy_samples_per_s=118.4,
        reasons=tuple(
            KnobReason(knob=knob, before=baseline[knob], after=value, sentence=f"{knob} helped.")
            for knob, value in changes.items()
        ),
        diagnosis=Diagnosis(bound="communication", sentence="Communication is exposed."),
        phases_before=Phases(),
        phases_after=Phases(),
        cost=Cost(wall_s=600.0, device_hours=0.3, trials=12, sessions=2),
        cluster="1 node × 2 CPUs",
        software={"torch": "2.13.0"},
    )
    return advice, job


@pytest.fixture(name="advise", scope="session")
def give_advise() -> Callable[..., tuple[Advice, Job]]:
    """Give the factory."""
    return advise
