"""Why an answer is what it is: where a step's time went, and what each change saves; for terminal and pages alike."""

import math

from advisor.protocol.answers.advice import Advice, KnobReason
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.changes import spell_with_unit
from advisor.protocol.measured.results import NOTICEABLE_S, Phases

_PHASES_SHOWN = 4
_SHORT_PHASES = {
    "data wait": "data", "exposed communication": "network", "broadcast of buffers": "buffers",
    "waiting for other ranks": "waiting",
}  # fmt: skip
_WORTH_TELLING = 0.05
"""Phases that make up less of what changed are left out."""


def say_why(advice: Advice) -> str:
    """Return one line: `one step 70.3 → 18.1 ms:  stalls 19.0 → 0.0 · network 14.9 → 4.5`."""
    before = advice.phases_before
    if before.total_s() <= 0:
        return advice.diagnosis.sentence
    befores = [(name, seconds or 0.0) for name, seconds in before.list_named()]
    if advice.changes and advice.phases_after.total_s() > 0:
        afters = dict(advice.phases_after.list_named())
        moved = [(name, was, afters[name] or 0.0) for name, was in befores]
        moved.sort(key=lambda row: -abs(row[2] - row[1]))
        least = max(NOTICEABLE_S, _WORTH_TELLING * sum(abs(now - was) for _, was, now in moved))
        moved = [row for row in moved if abs(row[2] - row[1]) >= least]
        parts = [
            f"{shorten(name)} {spell_ms(was)} → {spell_ms(now)}" for name, was, now in moved[:_PHASES_SHOWN]
        ]
        total = f"one step {spell_ms(before.total_s())} → {spell_ms(advice.phases_after.total_s())} ms"
        total += _say_stalls(advice)
        unknown = _say_unknown_network(before, advice.phases_after)
        return f"{total}:  {' · '.join(parts)}{unknown}" if parts else total
    largest = sorted(befores, key=lambda row: -row[1])[:_PHASES_SHOWN]
    parts = [f"{shorten(name)} {spell_ms(seconds)}" for name, seconds in largest if seconds >= NOTICEABLE_S]
    title = advice.diagnosis.title
    limited = f" ({title[0].lower()}{title[1:]})" if advice.diagnosis.bound != "unmeasured" else ""
    unknown = _say_unknown_network(before)
    return f"one step {spell_ms(before.total_s())} ms:  {' · '.join(parts)}{limited}{unknown}"


def _say_unknown_network(*told: Phases) -> str:
    if all(phases.exposed_comm_s is not None for phases in told):
        return ""
    return ". The network's share could not be measured; backward includes it"


def _say_stalls(advice: Advice) -> str:
    """Where stalls changed by more than the result's interval explains, that it takes them for the machine's."""
    gain, total = advice.gain, advice.total_ratio
    if gain is None or total is None or gain.low <= total <= gain.high:
        return ""
    return " (slow steps in full; the result takes them for the machine's)"


def say_saving(reason: KnobReason | None) -> str:
    """Return what the knob saves a step: `28 ms (22 … 35)`; empty where that is not told."""
    if reason is None or reason.effect is None:
        return ""
    effect = reason.effect
    ends = f"{spell_ms(effect.low_s)} … {spell_ms(effect.high_s)}"
    return f"{spell_ms(effect.saved_s)} ms ({ends})".replace("-", "−")


def list_savings(advice: Advice) -> list[str]:
    """Return a sentence for what is known alone, or together, one for all other changes, and what was left."""
    measured: dict[str, list[str]] = {}
    for reason in advice.reasons:
        if saving := say_saving(reason):
            measured.setdefault(saving, []).append(CATALOGUE.spell_name(reason.knob, advice.software))
    told = [
        f"{' and '.join(names)} {'save' if len(names) > 1 else 'saves'} {saving} a step."
        for saving, names in measured.items()
    ]
    return [*told, *filter(None, (say_unmeasured(advice), say_rest(advice), say_left(advice)))]


def say_unmeasured(advice: Advice) -> str:
    """Return which changes have no share of their own; empty for none, and for a change that is the only one."""
    names = [
        CATALOGUE.spell_name(reason.knob, advice.software)
        for reason in advice.reasons
        if reason.effect is None
    ]
    if not names or len(advice.reasons) == 1:
        return ""
    return f"Not known alone, only together with the other changes: {', '.join(names)}."


def say_left(advice: Advice) -> str:
    """Return what of the search's best strategy is not advised, with the values tried; empty where all of it is."""
    tried = [
        f"{CATALOGUE.spell_name(name, advice.software)} {spell_with_unit(value, advice.catalogue[name].unit)}"
        for name, value in advice.left.items()
    ]
    return f"{', '.join(tried)}: no difference shown, left as you have it." if tried else ""


def say_rest(advice: Advice) -> str:
    """Return what the changes save only together; empty where their savings add up within their intervals.

    All of it is from the same launches. Where a saving is not told, nothing can be added up.
    """
    effects = {reason.effect.model_dump_json(): reason.effect for reason in advice.reasons if reason.effect}
    if advice.gain is None or len(effects) < 2 or not all(reason.effect for reason in advice.reasons):
        return ""
    lost_s = advice.phases_before.total_s() * (1.0 - 1.0 / advice.gain.ratio)
    rest_s = lost_s - sum(effect.saved_s for effect in effects.values())
    open_s = math.hypot(*((effect.high_s - effect.low_s) / 2.0 for effect in effects.values()))
    if abs(rest_s) <= max(open_s, _WORTH_TELLING * lost_s):
        return ""
    together = "more" if rest_s > 0.0 else "less, because they save some of the same time"
    return f"Together they save {spell_ms(abs(rest_s))} ms {together}."


def shorten(phase: str) -> str:
    """Return the name of a phase in one word, where there is one."""
    return _SHORT_PHASES.get(phase, phase)


def spell_ms(seconds: float) -> str:
    """Milliseconds with as many digits as they mean: `28.1`, `140`."""
    milliseconds = seconds * 1e3
    return f"{milliseconds:.0f}" if abs(milliseconds) >= 100 else f"{milliseconds:.1f}"
