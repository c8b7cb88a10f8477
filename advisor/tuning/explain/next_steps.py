"""What to do next, in the order of its use."""

from collections.abc import Mapping

from advisor.protocol.answers.advice import Diagnosis
from advisor.protocol.gains import NOISY, say_launch_noise
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import Phases
from advisor.protocol.measured.trials import Trial
from advisor.protocol.training.workload import WorkloadKind
from advisor.tuning.explain.beyond_knobs import list_beyond_knobs
from advisor.tuning.history.record import Record
from advisor.tuning.stages.undecided import measure_launch_noise

_USES: Mapping[WorkloadKind, str] = {
    WorkloadKind.PYTORCH: "Put the strategy in place (run.sh trains the unchanged script under it) and compare one run "
    "at full length.",
    WorkloadKind.COMMAND: "Put the strategy in place (run.sh is your command with its values) and compare one run at "
    "full length.",
    WorkloadKind.PADDLE: "Put the strategy in place: load strategy.prototxt into fleet's DistributedStrategy, or pass "
    "fuse_grad_size_in_MB as comm_buffer_size and last_comm_group_size_MB as last_comm_buffer_size to "
    "paddle.DataParallel; and compare one run at full length.",
}


def list_next_steps(
    record: Record,
    chosen: Trial | None,
    diagnosis: Diagnosis,
    phases: tuple[Phases, Phases],
    has_ladder: bool,
    host_cores: float | None = None,
) -> tuple[str, ...]:
    """Return sentences in the order of their use; `phases` are those before and after the advised change.

    `has_ladder`: some rung of the ladder was measured. `host_cores`: processors that a rank keeps
    busy.
    """
    steps: list[str] = []
    kind = record.job.spec.workload.kind
    if (testbed := record.job.spec.testbed) is not None:
        steps.append(
            f"All of this holds on {testbed.describe()}: its nodes share this machine's CPUs and memory. Tune on your "
            "own nodes before you change how you train."
        )
    if chosen is not None:
        steps.append(_USES[kind])
        if kind is WorkloadKind.PYTORCH and (cold := record.catalogue.keep_cold(chosen.changes)):
            steps.append(
                f"Set {Changes(cold).describe()} where the job is launched: it acts in new processes only."
            )
    steps += [flag.sentence for flag in diagnosis.flags]
    steps += list_beyond_knobs(record.job, chosen, diagnosis, phases[1], host_cores)
    noise = measure_launch_noise(record)
    if noise is not None and noise > NOISY:
        steps.append(
            f"{say_launch_noise(noise)}: tune on a quieter cluster, or give the job more time, to see smaller gains."
        )
    if chosen is None and has_ladder:
        steps.append("The ladder shows what riskier settings measured, and what they cost.")
    return tuple(steps)
