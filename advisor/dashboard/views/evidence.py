"""The evidence beside the verdict: what may bound a step, knobs taken back, throughput against loss."""

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.dashboard import formats
from advisor.dashboard.views.chips import Chip, chip_for_effect
from advisor.dashboard.views.forecasts import WhatIf, view_forecasts
from advisor.protocol.answers.advice import Advice, KnobEffect, ParetoPoint
from advisor.protocol.base import Value
from advisor.protocol.knobs.catalogue import CATALOGUE

_OTHERS_SHOWN = 7
_BOUNDS = {
    "communication": "communication",
    "compute": "computation",
    "input": "reading data",
    "straggler": "one slow rank",
    "launch": "starting work",
}


@dataclass(frozen=True)
class FindingLine:
    """One thing that may bound a step."""

    name: str
    share: str
    chip: Chip
    evidence: str
    knobs_in: str
    knobs_out: str


@dataclass(frozen=True)
class ParetoLine:
    """A strategy in the plane of throughput and loss."""

    trial_number: int
    effect: Chip
    throughput: str
    loss: str
    changes: str
    on_front: bool


@dataclass(frozen=True)
class Evidence:
    """What stands beside the verdict."""

    findings: tuple[FindingLine, ...]
    scaling: tuple[tuple[str, str], ...]
    """Label and value."""
    stalls: str
    """A sentence about stalls; empty where there are none to speak of."""
    taken_back: tuple[str, ...]
    pareto: tuple[ParetoLine, ...]
    pareto_left: int
    """Measured strategies that the table leaves out: the API has all."""
    search_ended: str
    forecasts: tuple[WhatIf, ...] = ()
    forecast_caveat: str = ""


def show_knob(name: str, value: Value | None) -> str:
    """Return a knob's value with its unit."""
    knob = CATALOGUE.get(name)
    return formats.knob_value(value, knob.unit if knob and not isinstance(value, str) else "")


def show_saving(effect: KnobEffect | None) -> tuple[str, str]:
    """Return milliseconds a step that a knob saves, and their interval; empty where it was not taken back."""
    if effect is None:
        return "", ""
    low, high = (formats.signed_milliseconds(end) for end in (effect.low_s, effect.high_s))
    return formats.signed_milliseconds(effect.saved_s), f"{low} … {high}"


def view_evidence(advice: Advice) -> Evidence:
    """Build the sections of evidence."""
    diagnosis = advice.diagnosis
    scaling = [
        (f"scaling efficiency {when}", formats.percent(share, 0))
        for when, share in (("before", diagnosis.scaling_before), ("after", diagnosis.scaling_after))
        if share is not None
    ]
    findings = tuple(
        FindingLine(
            name=_BOUNDS.get(finding.bound, finding.bound),
            share=formats.percent(finding.share),
            chip=Chip("caution", "alert", "bounds the step")
            if finding.holds
            else Chip("muted", "check", "does not"),
            evidence=finding.evidence,
            knobs_in=", ".join(finding.knobs_in),
            knobs_out=", ".join(finding.knobs_out),
        )
        for finding in diagnosis.findings
    )
    return Evidence(
        findings=findings,
        scaling=tuple(scaling),
        stalls=_describe_stalls(advice),
        taken_back=tuple(dict.fromkeys(reason.sentence for reason in advice.taken_back)),
        pareto=tuple(map(_view_point, _pick_points(advice.pareto))) if len(advice.pareto) > 1 else (),
        pareto_left=max(0, len(advice.pareto) - len(_pick_points(advice.pareto))),
        search_ended=advice.search_ended_because,
        forecasts=view_forecasts(advice.forecasts),
        forecast_caveat=advice.forecasts[0].caveat if advice.forecasts else "",
    )


def _pick_points(points: Sequence[ParetoPoint]) -> list[ParetoPoint]:
    """The front, and the fastest of the others."""
    others = [point for point in points if not point.on_front][:_OTHERS_SHOWN]
    return [point for point in points if point.on_front or point in others]


def _view_point(point: ParetoPoint) -> ParetoLine:
    if point.loss_change is None:
        loss = "not seen"
    elif point.loss_change == 0 and point.loss_error is None:
        loss = "same"
    else:
        error = f" ± {point.loss_error:.2g}" if point.loss_error is not None else ""
        loss = f"{point.loss_change:+.3g}{error}".replace("-", "−")
    return ParetoLine(
        trial_number=point.trial_number,
        effect=chip_for_effect(point.effect),
        throughput=formats.gain(point.throughput_ratio),
        loss=loss,
        changes=", ".join(f"{name} {show_knob(name, value)}" for name, value in point.changes.items())
        or "the script as it stands",
        on_front=point.on_front,
    )


def _describe_stalls(advice: Advice) -> str:
    before, after = advice.phases_before.stalls_s, advice.phases_after.stalls_s
    if max(before, after) < 0.02 * max(advice.phases_before.total_s(), 1e-9):
        return ""
    took = f"{formats.milliseconds(before)} ms of the mean step before"
    took += f" and {formats.milliseconds(after)} ms after" if advice.changes else ""
    return f"Stalls take {took}: some steps last longer than the typical one, and throughput counts them."
