"""What each knob of a strategy brings, in seconds a step: the evidence of the trimming and the confirmation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from advisor.protocol.answers.advice import KnobEffect
from advisor.protocol.base import Value
from advisor.protocol.gains import Quality, judge_quality
from advisor.protocol.measured.trials import Block
from advisor.tuning.history.record import Record
from advisor.tuning.measure.statistics import LogInterval
from advisor.tuning.search.state import choose_winner, look
from advisor.tuning.space.space import Space
from advisor.tuning.stages.confirmation import Confirmation
from advisor.tuning.stages.trimming import Removal, trim, units_of

_HUGE = 50.0
"""Largest ln ratio that is turned into seconds."""


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
    record: Record, space: Space | None, changes: Mapping[str, Value], confirmation: Confirmation | None
) -> tuple[Evidence, ...]:
    """Return the evidence for the knobs of the strategy that is advised.

    Each removal that was raced and whose knobs the strategy still has, be it because some knob has to stay; the
    confirmation for a strategy that only goes back as a whole. Empty where the budget allowed neither.
    """
    if confirmation is not None and confirmation.look is not None and len(units_of(space, changes)) == 1:
        found = confirmation.look
        with_knobs = tuple(c.strategy for c in confirmation.comparisons)
        without = tuple(c.reference for c in confirmation.comparisons)
        cycles = sum(launch.cycles for launch in confirmation.told)
        brings = LogInterval(mean=found.mean, low=found.low, high=found.high, rounds=cycles)
        effect = _in_seconds(brings, with_knobs)
        return (Evidence(tuple(changes), effect, brings, with_knobs, without, True),) if effect else ()
    return tuple(
        evidence
        for removal in _removals_of(record, changes)
        if changes.keys() >= set(removal.knobs) and (evidence := _evidence_of(removal)) is not None
    )


def list_taken_back(
    record: Record, space: Space | None, changes: Mapping[str, Value]
) -> tuple[tuple[Removal, Evidence], ...]:
    """Return the removals that took knobs out of the strategy that is advised: none of those that it still has."""
    return tuple(
        (removal, evidence)
        for removal in _removals_of(record, changes)
        if space is not None
        and removal.is_taken_back
        and changes.keys().isdisjoint(removal.knobs)
        and (evidence := _evidence_of(removal)) is not None
    )


def _removals_of(record: Record, changes: Mapping[str, Value]) -> tuple[Removal, ...]:
    """The trimming as it was decided before the verdict's races; nothing where another strategy came out of it."""
    state = look(record)
    done = trim(record, state.space, choose_winner(state)) if state is not None else None
    if done is None:
        return ()
    kept = done.winner == changes
    return (
        done.removals if kept else tuple(r for r in done.removals if changes.items() <= done.winner.items())
    )


def _evidence_of(removal: Removal) -> Evidence | None:
    with_knobs = tuple(c.reference for c in removal.comparisons)
    if removal.brings is None:
        return None
    effect = _in_seconds(removal.brings, with_knobs)
    without = tuple(c.strategy for c in removal.comparisons)
    return Evidence(removal.knobs, effect, removal.brings, with_knobs, without) if effect else None


def _in_seconds(brings: LogInterval, with_knobs: Sequence[Block]) -> KnobEffect | None:
    """A mean step of t seconds with the knobs takes t (e^r - 1) longer without them, r = ln of the rates' ratio.

    None where no step was timed, or the ratio is not known well enough to be told.
    """
    low, high = (max(-_HUGE, min(_HUGE, r)) for r in (brings.low, brings.high))
    if judge_quality(math.exp(low), math.exp(high)) is not Quality.KNOWN:
        return None
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
