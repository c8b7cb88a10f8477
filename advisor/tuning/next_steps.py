"""What to do next, what no knob can do included."""

from advisor.protocol.advice import Diagnosis
from advisor.protocol.knobs import Effect
from advisor.protocol.strategy import cold_part
from advisor.protocol.trials import Phases, Trial
from advisor.tuning.composition import describe_changes
from advisor.tuning.record import Record

_NOISY = 0.03


def list_next_steps(
    record: Record, chosen: Trial | None, diagnosis: Diagnosis, phases: tuple[Phases, Phases]
) -> tuple[str, ...]:
    """Return sentences in the order of their use; `phases` are those before and after the advised change."""
    steps: list[str] = []
    if chosen is not None:
        steps.append(
            "Put the strategy in place (run.sh applies it to the unchanged script) and compare one run at full length."
        )
        if cold := cold_part(chosen.changes):
            steps.append(
                f"Set {describe_changes(cold)} where the job is launched: it acts in new processes only."
            )
        if chosen.effect is not Effect.EXACT:
            steps.append(
                "Compare one full training with the baseline's final accuracy before you rely on it."
            )
    steps += _beyond_knobs(diagnosis, phases[1])
    noise = record.run_noise
    if noise is not None and noise > _NOISY:
        steps.append(
            f"The baseline alone varied by {noise:.1%} from block to block: tune on a quieter cluster, or with longer "
            "blocks (measurement.block_s), to see smaller gains."
        )
    if chosen is None and record.job.spec.allow is not Effect.CONVERGENCE:
        steps.append("The ladder shows what the rungs above the allowed one measured, and what they cost.")
    return tuple(steps)


def _beyond_knobs(diagnosis: Diagnosis, after: Phases) -> list[str]:
    total = after.total_s()
    if total <= 0:
        return []
    left = after.exposed_comm_s or 0.0
    steps = []
    if left / total >= 0.15:
        steps.append(
            f"{left * 1e3:.1f} ms of each {total * 1e3:.1f} ms step is still exposed communication: faster links, or a "
            "larger batch per rank, would help where knobs no longer do."
        )
    if after.data_wait_s / total >= 0.05:
        steps.append(
            f"{after.data_wait_s * 1e3:.1f} ms of each {total * 1e3:.1f} ms step waits for data: give the DataLoader "
            "more workers, or read from faster storage."
        )
    if diagnosis.bound == "straggler":
        steps.append(
            f"The slowest rank lags by {diagnosis.skew:.0%}: look for another load, throttling or a slower device on "
            "its node; no strategy mends that."
        )
    if diagnosis.bound == "compute":
        steps.append(
            "The step is computation: mixed precision, a compiled model or faster devices come next."
        )
    return steps
