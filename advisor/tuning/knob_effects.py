"""What each knob of a strategy brings, in seconds a step: the evidence of the simplification and the confirmation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from advisor.protocol.advice import KnobEffect
from advisor.protocol.base import Value
from advisor.protocol.trials import Block
from advisor.tuning.confirmation import Confirmation
from advisor.tuning.record import Record
from advisor.tuning.simplify import Comparison, simplify, units_of
from advisor.tuning.statistics import LogInterval

_HUGE = 50.0


@dataclass(frozen=True)
class Evidence:
    """Blocks of a strategy with some knobs and without them, and what their rounds say."""

    knobs: tuple[str, ...]
    effect: KnobEffect
    brings: LogInterval
    """ln(throughput with the knobs / without them), with its 95 % interval."""
    with_knobs: tuple[Block, ...]
    without: tuple[Block, ...]
    is_against_baseline: bool = False
    """The knobs are all that the strategy changes, so that the confirmation itself is the evidence."""


def list_evidence(
    record: Record, changes: Mapping[str, Value], confirmation: Confirmation | None
) -> tuple[Evidence, ...]:
    """Return the evidence for the knobs of the strategy that is advised.

    Each comparison of the simplification that is over and whose knobs the strategy still has; the confirmation for a
    strategy that only goes back as a whole. Empty where the budget allowed neither.
    """
    pairs = confirmation.pairs if confirmation else ()
    if confirmation is not None and confirmation.interval is not None and len(units_of(record, changes)) == 1:
        with_knobs = tuple(pair.strategy for pair in pairs)
        effect = _in_seconds(confirmation.interval, with_knobs)
        without = tuple(pair.baseline for pair in pairs)
        found = (
            Evidence(tuple(changes), effect, confirmation.interval, with_knobs, without, True)
            if effect
            else None
        )
        return (found,) if found else ()
    return tuple(
        evidence
        for comparison in _comparisons_of(record, changes)
        if not comparison.is_taken_back and (evidence := _evidence_of(comparison)) is not None
    )


def list_taken_back(record: Record, changes: Mapping[str, Value]) -> tuple[tuple[Comparison, Evidence], ...]:
    """Return the comparisons that took knobs out of the strategy that is advised."""
    return tuple(
        (comparison, evidence)
        for comparison in _comparisons_of(record, changes)
        if comparison.is_taken_back and (evidence := _evidence_of(comparison)) is not None
    )


def _comparisons_of(record: Record, changes: Mapping[str, Value]) -> tuple[Comparison, ...]:
    done = simplify(record)
    return done.comparisons if done and done.winner.changes == changes else ()


def _evidence_of(comparison: Comparison) -> Evidence | None:
    with_knobs = tuple(pair.baseline for pair in comparison.pairs)
    if not comparison.is_over or comparison.brings is None:
        return None
    effect = _in_seconds(comparison.brings, with_knobs)
    without = tuple(pair.strategy for pair in comparison.pairs)
    return Evidence(comparison.knobs, effect, comparison.brings, with_knobs, without) if effect else None


def _in_seconds(brings: LogInterval, with_knobs: Sequence[Block]) -> KnobEffect | None:
    """A mean step of t seconds with the knobs takes t (e^r - 1) longer without them, r = ln of the rates' ratio."""
    steps = [
        math.log(b.result.samples_per_step / b.summary.samples_per_s)
        for b in with_knobs
        if b.result and b.summary and b.summary.samples_per_s > 0 and b.result.samples_per_step > 0
    ]
    if not steps:
        return None
    step_s = math.exp(fmean(steps))
    saved, low, high = (
        step_s * math.expm1(max(-_HUGE, min(_HUGE, r))) for r in (brings.mean, brings.low, brings.high)
    )
    return KnobEffect(saved_s=saved, low_s=low, high_s=high, rounds=brings.rounds)
