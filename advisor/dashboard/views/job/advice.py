"""The advice's sections: what changed, the ladder, the diagnosis, what was left out."""

from dataclasses import dataclass

from advisor.dashboard import formats
from advisor.dashboard.views.chips import Chip, chip_for_effect
from advisor.dashboard.views.evidence import Evidence, show_knob, show_saving, view_evidence
from advisor.protocol.answers.advice import Advice, Finding, Interval, RungAdvice
from advisor.protocol.answers.gains import spell_gain, spell_likely, spell_range
from advisor.protocol.knobs.catalogue import CATALOGUE


@dataclass(frozen=True)
class Change:
    """One knob of the advised strategy that differs from the baseline."""

    knob: str
    meaning: str
    before: str
    after: str
    saved: str
    """Milliseconds a step that it saves; empty where it was not taken back to see."""
    saved_range: str
    sentence: str
    evidence: str
    provenance: str
    effect: Chip


@dataclass(frozen=True)
class Rung:
    """What another rung of the ladder measured."""

    effect: Chip
    changes: str
    figure: str
    interval: str
    sentence: str
    caveat: str
    goodput: str = ""
    """Throughput times progress per sample, where that was measured."""


@dataclass(frozen=True)
class AdviceSections:
    """The parts of the page that exist once there is an advice."""

    changes: tuple[Change, ...]
    ladder: tuple[Rung, ...]
    allowed: Chip
    bound: str
    diagnosis: str
    findings: tuple[Finding, ...]
    ceiling: str
    skew: str
    buckets: str
    evidence: Evidence


def _view_changes(advice: Advice) -> tuple[Change, ...]:
    reasons = {reason.knob: reason for reason in advice.reasons}
    lines = []
    for name, after in advice.changes.items():
        reason, knob = reasons.get(name), CATALOGUE.get(name)
        before = reason.before if reason else advice.baseline.get(name)
        lines.append(
            Change(
                knob=name,
                meaning=knob.meaning if knob else "",
                before=show_knob(name, before),
                after=show_knob(name, after),
                saved=show_saving(reason.effect if reason else None)[0],
                saved_range=show_saving(reason.effect if reason else None)[1],
                sentence=reason.sentence if reason else "",
                evidence=reason.evidence if reason else "",
                provenance=advice.provenance[name].value if name in advice.provenance else "",
                effect=chip_for_effect(knob.effect if knob else advice.allowed),
            )
        )
    return tuple(lines)


def _spell(gain: Interval) -> str:
    return spell_likely(gain.ratio, gain.low, gain.high)


def _spell_range(gain: Interval) -> str:
    return spell_range(gain.ratio, gain.low, gain.high)


def view_rung(rung: RungAdvice) -> Rung:
    """Build a rung's row."""
    gain: Interval | None = rung.gain
    return Rung(
        effect=chip_for_effect(rung.effect),
        changes=", ".join(f"{name} {show_knob(name, value)}" for name, value in rung.changes.items()),
        figure=_spell(gain) if gain else "unconfirmed",
        interval=_spell_range(gain) if gain else "",
        sentence=rung.sentence,
        caveat=rung.caveat,
        goodput=f"goodput {_spell(rung.goodput)} ({_spell_range(rung.goodput)})" if rung.goodput else "",
    )


def _describe_buckets(before: tuple[int, ...], after: tuple[int, ...]) -> str:
    if not before or not after:
        return ""
    return (
        f"{formats.plural(len(before), 'bucket')} of at most {formats.size(max(before))} before, "
        f"{len(after)} of at most {formats.size(max(after))} after."
    )


def view_advice(advice: Advice) -> AdviceSections:
    """Build the sections below the verdict."""
    ceiling = advice.diagnosis.ceiling_ratio
    return AdviceSections(
        changes=_view_changes(advice),
        ladder=tuple(view_rung(rung) for rung in advice.ladder),
        allowed=chip_for_effect(advice.allowed),
        bound=advice.diagnosis.title,
        diagnosis=advice.diagnosis.sentence,
        findings=advice.diagnosis.findings,
        ceiling=spell_gain(ceiling) if ceiling is not None else "",
        skew=formats.percent(advice.diagnosis.skew, 1),
        buckets=_describe_buckets(advice.buckets_before, advice.buckets_after),
        evidence=view_evidence(advice),
    )
