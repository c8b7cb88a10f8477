"""What stands below the verdict, in words: why a knob changed, buckets, stalls and how the job scales."""

from advisor.dashboard import formats
from advisor.protocol.answers.advice import Advice, Diagnosis, KnobReason


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
