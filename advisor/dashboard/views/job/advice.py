"""What stands below the verdict, in words: why a knob changed, buckets, stalls, scaling, trainings, exported files."""

import io
import zipfile
from collections.abc import Mapping
from datetime import datetime, timedelta

from advisor.dashboard import formats
from advisor.dashboard.views.chips import Chip
from advisor.exporters import Exported
from advisor.exporters.format import describe_difference
from advisor.protocol.answers.advice import Advice, Diagnosis, KnobReason
from advisor.protocol.measured.runs import ProductionRun

_SILENT = timedelta(minutes=10)
"""A training that reported nothing for so long has ended, or cannot reach the server."""
_TAGS = {"-": "del", "+": "ins", "!": "strong"}


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


def judge_run(run: ProductionRun, now: datetime) -> Chip:
    """Return the chip of a training: as advised, running, slow or silent."""
    if now - run.reported_at > _SILENT:
        return Chip("muted", "minus", "silent", "It has ended, or cannot reach the server.")
    if run.is_below:
        return Chip("bad", "alert", "slow", "Its throughput is below the advised interval.")
    word = "as advised" if run.low is not None else "running"
    return Chip("good", "check", word, "Its steps are as fast as they were.")


def view_difference(advice: Advice, file: Exported) -> tuple[tuple[str, str], ...]:
    """Return the lines of the diff, each with the element that says so to who does not see its sign."""
    lines = describe_difference(advice, file).splitlines()
    return tuple(
        ("span" if line.startswith(("---", "+++")) else _TAGS.get(line[:1], "span"), line) for line in lines
    )


def pack_files(files: Mapping[str, bytes]) -> bytes:
    """Return the files as a zip archive, the same bytes for the same files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(".sh") else 0o644) << 16
            archive.writestr(entry, content)
    return packed.getvalue()
