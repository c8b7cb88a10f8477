"""A plan of buckets from the probe's timings goes through a whole job: raced and advised."""

from dataclasses import replace

from advisor.protocol.answers.advice import Advice, Verdict
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import BlockResult, Calibration, GradientTiming, LinkLevel, LinkTiming
from advisor.protocol.measured.trials import Session
from tests.unit.tuning.simulated_cluster import QUIET, SimulatedCluster, make_job, make_spec

MIB = 2**20
GRADIENTS = tuple(GradientTiming(bytes=2 * MIB, ready_s=0.003 * (i + 1)) for i in range(20))
LINKS = tuple(
    LinkTiming(level=LinkLevel.WORLD, ranks=4, bytes=n, seconds=0.003 + 0.0012 * n / MIB, concurrent=1)
    for n in (1024, 65536, MIB, 16 * MIB)
)
EXPOSED_S = 0.0486
"""What these links leave of these gradients beyond backward, in DDP's own buckets."""
KNOB = "bucket_cap_mb_list"


def calibrate(changes: Changes, _: Session, result: BlockResult) -> BlockResult:
    if changes:
        return result
    phases = replace(result.phases, exposed_comm_s=EXPOSED_S)
    return replace(result, calibration=Calibration(gradients=GRADIENTS, links=LINKS), phases=phases)


def test_a_plan_that_helps_is_raced_and_advised() -> None:
    cluster = SimulatedCluster(
        make_job(make_spec(knobs=(KNOB, "fuse_grad_size_in_MB"))),
        lambda changes: 1.2 if changes.get(KNOB) else 1.0,
        noise=QUIET,
        alter=calibrate,
    )
    advice = cluster.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE
    planned = [trial for trial in cluster.history.trials if set(trial.changes) == {KNOB}]
    assert advice.changes[KNOB] in {trial.changes[KNOB] for trial in planned}
    assert any("Reductions add to backward" in trial.because for trial in planned)
