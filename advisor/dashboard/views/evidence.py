"""The evidence beside the verdict: what may bound a step, and knobs taken back; a knob and a strategy in words."""

from collections.abc import Mapping
from dataclasses import dataclass

from advisor.dashboard import formats
from advisor.dashboard.views.chips import Chip
from advisor.protocol.answers.advice import Advice, Finding, KnobEffect
from advisor.protocol.base import Value
from advisor.protocol.knobs.catalogue import CATALOGUE


@dataclass(frozen=True)
class Evidence:
    """What stands beside the verdict."""

    scaling: tuple[tuple[str, str], ...]
    """Label and value."""
    stalls: str
    """A sentence about stalls; empty where there are none to speak of."""
    taken_back: tuple[str, ...]


def show_knob(name: str, value: Value | None) -> str:
    """Return a knob's value with its unit."""
    knob = CATALOGUE.get(name)
    return formats.knob_value(value, knob.unit if knob and not isinstance(value, str) else "")


def describe_changes(changes: Mapping[str, Value]) -> str:
    """Return changes in one line; the baseline's own words when there is none."""
    if not changes:
        return "the script as it stands"
    return ", ".join(f"{name} {show_knob(name, value)}" for name, value in changes.items())


def show_saving(effect: KnobEffect | None) -> tuple[str, str]:
    """Return milliseconds a step that a knob saves, and their interval; empty where it was not taken back."""
    if effect is None:
        return "", ""
    low, high = (formats.signed_milliseconds(end) for end in (effect.low_s, effect.high_s))
    return formats.signed_milliseconds(effect.saved_s), f"{low} … {high}"


def judge_finding(finding: Finding) -> Chip:
    """Return the chip that says whether it bounds the step."""
    if finding.holds:
        return Chip("caution", "alert", "bounds the step")
    return Chip("muted", "check", "does not bound it")


def view_evidence(advice: Advice) -> Evidence:
    """Build the sections of evidence."""
    diagnosis = advice.diagnosis
    scaling = [
        (f"scaling efficiency {when}", formats.percent(share, 0))
        for when, share in (("before", diagnosis.scaling_before), ("after", diagnosis.scaling_after))
        if share is not None
    ]
    return Evidence(
        scaling=tuple(scaling),
        stalls=_describe_stalls(advice),
        taken_back=tuple(dict.fromkeys(reason.sentence for reason in advice.taken_back)),
    )


def _describe_stalls(advice: Advice) -> str:
    before, after = advice.phases_before.stalls_s, advice.phases_after.stalls_s
    if max(before, after) < 0.02 * max(advice.phases_before.total_s(), 1e-9):
        return ""
    took = f"{formats.milliseconds(before)} ms of the mean step before"
    took += f" and {formats.milliseconds(after)} ms after" if advice.changes else ""
    return f"Stalls take {took}: some steps last longer than the typical one, and throughput counts them."
