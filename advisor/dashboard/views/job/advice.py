"""What stands below the verdict, in words: why a knob changed, buckets, stalls, scaling, and real trainings."""

from datetime import datetime, timedelta

from advisor.dashboard import formats
from advisor.dashboard.views.chips import Chip
from advisor.protocol.answers.advice import Advice, Diagnosis, KnobReason
from advisor.protocol.measured.runs import ProductionRun


def find_reason(advice: Advice, knob: str) -> KnobReason | None:
    """Return why a knob of the advised strategy changed; None where the advice gives no reason."""
    return next((reason for reason in advice.reasons if reason.knob == knob), None)


def describe_buckets(advice: Advice) -> str:
    """Return how many buckets there are before and after; "" where they are not known."""
    before, after = advice.buckets_before, advice.buckets_after
    if not before or not after:
        return ""
    return (
        f"{formats.plural(len(before), 'bucket')} of at most {formats.size(max(before))} before, "
        f"{len(after)} of at most {formats.size(max(after))} after."
    )


def describe_stalls(advice: Advice) -> str:
    """Return a sentence about stalls; "" where there are none to speak of."""
    before, after = advice.phases_before.stalls_s, advice.phases_after.stalls_s
    if max(before, after) < 0.02 * max(advice.phases_before.total_s(), 1e-9):
        return ""
    took = f"{formats.milliseconds(before)} ms of the mean step before"
    took += f" and {formats.milliseconds(after)} ms after" if advice.changes else ""
    return f"Stalls take {took}: some steps last longer than the typical one, and throughput counts them."


def list_scaling(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Return how efficiently the job scales, before and after, as label and value."""
    return [
        (f"scaling efficiency {when}", formats.percent(share))
        for when, share in (("before", diagnosis.scaling_before), ("after", diagnosis.scaling_after))
        if share is not None
    ]


_SILENT = timedelta(minutes=10)
"""A training that reported nothing for so long has ended, or cannot reach the server."""


def judge_run(run: ProductionRun, now: datetime) -> Chip:
    """Return the chip of a training: as advised, running, slow or silent."""
    if now - run.reported_at > _SILENT:
        return Chip("muted", "minus", "silent", "It has ended, or cannot reach the server.")
    if run.is_below:
        return Chip("bad", "alert", "slow", "Its throughput is below the advised interval.")
    word = "as advised" if run.low is not None else "running"
    return Chip("good", "check", word, "Its steps are as fast as they were.")
