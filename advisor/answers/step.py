"""A step before and after in the few parts that moved most: the figure that says where the time went."""

from dataclasses import dataclass

from advisor.protocol.answers.advice import Advice, Verdict
from advisor.protocol.measured.results import NOTICEABLE_S

_PARTS = 3
"""Parts that have a name of their own; the others are one."""
_SHORT = {
    "data wait": "data", "exposed communication": "network", "broadcast of buffers": "buffers",
    "waiting for other ranks": "waiting",
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One part of a step."""

    name: str
    before_s: float
    after_s: float | None
    """None where nothing is advised."""


@dataclass(frozen=True)
class Step:
    """One step as the script stands and, of a change, as advised, in seconds."""

    before_s: float
    after_s: float | None
    parts: tuple[Part, ...]
    """What moved most, or takes most, first; all other parts together last. They add up to the step."""
    notes: tuple[str, ...]
    """What the figures do not show."""


def tell_step(advice: Advice) -> Step | None:
    """Return the account of a step; None where it was not measured."""
    before, after = advice.phases_before, advice.phases_after
    if before.total_s() <= 0:
        return None
    is_change = advice.verdict is Verdict.CHANGE and after.total_s() > 0
    afters = dict(after.list_named()) if is_change else {}
    parts = [
        Part(_SHORT.get(name, name), was or 0.0, (afters[name] or 0.0) if is_change else None)
        for name, was in before.list_named()
    ]
    parts.sort(key=lambda part: -abs(part.before_s - (part.after_s or 0.0)))
    named = [part for part in parts[:_PARTS] if abs(part.before_s - (part.after_s or 0.0)) >= NOTICEABLE_S]
    rest = [part for part in parts if part not in named]
    named.append(
        Part(
            "other",
            sum(part.before_s for part in rest),
            sum(part.after_s or 0.0 for part in rest) if is_change else None,
        )
    )
    notes = []
    gain, total = advice.gain, advice.total_ratio
    if is_change and gain is not None and total is not None and not gain.low <= total <= gain.high:
        notes.append("Slow steps are drawn in full; the result takes them for the machine's.")
    told = (before, after) if is_change else (before,)
    if any(phases.exposed_comm_s is None for phases in told):
        notes.append("The network's share could not be measured; backward includes it.")
    return Step(before.total_s(), after.total_s() if is_change else None, tuple(named), tuple(notes))


def spell_ms(seconds: float) -> str:
    """Milliseconds with as many digits as they mean: `28.1`, `140`."""
    milliseconds = seconds * 1e3
    return f"{milliseconds:.0f}" if abs(milliseconds) >= 100 else f"{milliseconds:.1f}"
