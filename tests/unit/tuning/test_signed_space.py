"""Whatever the planner asks for is what the owner of a signed job agreed to: no agent refuses an honest server."""

import pytest

from advisor.protocol.asked.jobs import Budget
from advisor.protocol.asked.signing import explain_foreign_strategy
from advisor.protocol.knobs.changes import Changes
from advisor.tuning.decisions import Launch, Race

from .simulated_cluster import QUIET, SimulatedCluster, make_job, make_spec
from .test_planner import faster_with_small_buckets

JOBS = {
    "everything": {},
    "one knob": {"knobs": ("fuse_grad_size_in_TFLOPS",)},
    "some knobs": {
        "knobs": ("fuse_grad_size_in_MB", "nccl_comm_num", "use_hierarchical_allreduce", "localsgd_k_steps")
    },
    "all rungs": {"allow": "convergence"},
    "frozen": {"freeze": ("fuse_grad_size_in_MB", "fp16_allreduce", "sync_nccl_allreduce")},
    "values": {"values": {"num_threads": (1, 2), "fuse_grad_size_in_MB": (2.0, 64.0)}},
    "verify": {"verify": {"fuse_grad_size_in_MB": 4.0, "num_threads": 2}},
}


@pytest.mark.parametrize("which", JOBS)
def test_planner_stays_within_what_was_signed(which: str) -> None:
    spec = make_spec(budget=Budget(max_trials=12, max_seconds=1500), **JOBS[which])
    cluster = SimulatedCluster(job=make_job(spec), speed=faster_with_small_buckets, noise=QUIET)
    cluster.run()
    asked: set[Changes] = set()
    for decision in cluster.decisions:
        if isinstance(decision, Launch):
            asked.add(decision.cold)
        if isinstance(decision, Race):
            asked |= {arm.changes for arm in decision.arms}
    assert asked - {Changes()}
    foreign = [why for changes in asked if (why := explain_foreign_strategy(spec, changes))]
    assert foreign == []
