"""What each setting of the advised strategy saves, in seconds a step: told from the verdict's launches, or not told."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from advisor.protocol.answers.advice import KnobEffect
from advisor.protocol.base import Value
from advisor.protocol.gains import Quality, judge_quality
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Block, Purpose
from advisor.tuning.explain.cases import Case, ends_by_time
from advisor.tuning.history.comparisons import list_comparisons
from advisor.tuning.history.record import Record
from advisor.tuning.measure.contrast import mean_rate
from advisor.tuning.measure.sequential import Look
from advisor.tuning.search.state import SearchState, choose_winner
from advisor.tuning.stages.parts import compare, find_parts


@dataclass(frozen=True)
class Evidence:
    """Blocks of a strategy with some knobs and without them, and what their rounds say."""

    knobs: tuple[str, ...]
    effect: KnobEffect
    with_knobs: tuple[Block, ...]
    without: tuple[Block, ...]


def list_evidence(record: Record, chosen: Case | None) -> tuple[Evidence, ...]:
    """Return the evidence for the settings of the strategy that is advised, those that only help together as one.

    Each that the verdict's launches raced the strategy without, where that is shown to be slower. What all bring
    together, ln(rate), is divided as the ln ratios are, so that the seconds add up to those that the step lost
    (logarithmic mean: Ang 2004).
    """
    if chosen is None or chosen.gain is None:
        return ()
    changes, found = chosen.trial.changes, []
    smaller = [part for part in find_parts(record, changes) if part.items() < changes.items()]
    told: set[str] = set()
    for part in sorted(smaller, key=len, reverse=True):
        knobs = tuple(name for name in changes if name not in part)
        look = compare(record, changes, part, forced=ends_by_time(record))
        if look is None or look.decision != "change" or told & set(knobs):
            continue
        raced = list_comparisons(record, Purpose.CONFIRM, changes, against=part)
        sides = tuple(c.strategy for c in raced), tuple(c.reference for c in raced)
        if (effect := _in_seconds(look, chosen, sum(c.contrast.cycles for c in raced))) is not None:
            found.append(Evidence(knobs, effect, *sides))
            told |= set(knobs)
    rest = tuple(name for name in changes if name not in told)
    if not told and rest and chosen.confirmation.look is not None:
        sides = (
            tuple(c.strategy for c in chosen.confirmation.comparisons),
            tuple(c.reference for c in chosen.confirmation.comparisons),
        )
        effect = _in_seconds(chosen.confirmation.look, chosen, chosen.gain.rounds)
        return (Evidence(rest, effect, *sides),) if effect is not None else ()
    return tuple(found)


def list_left(state: SearchState | None, changes: Mapping[str, Value]) -> Changes:
    """Return what the search's winner set besides what is advised: none of it is shown to help."""
    winner = choose_winner(state) if state is not None and changes else None
    if winner is None or not changes.items() <= winner.changes.items():
        return Changes()
    return Changes({name: value for name, value in winner.changes.items() if name not in changes})


def _in_seconds(look: Look, chosen: Case, rounds: int) -> KnobEffect | None:
    """None where no step was timed, or the ratio is not known well enough to be told."""
    whole = chosen.confirmation.look
    if whole is None or judge_quality(math.exp(look.low), math.exp(look.high)) is not Quality.KNOWN:
        return None
    before = [c.reference for c in chosen.confirmation.comparisons]
    rate, samples = mean_rate(before), before[-1].result.samples_per_step if before[-1].result else 0.0
    if rate <= 0.0 or samples <= 0.0:
        return None
    step_s = samples / rate
    if look.mean == whole.mean:
        saved, low, high = (-step_s * math.expm1(-r) for r in (look.mean, look.low, look.high))
    else:
        each_s = -step_s * math.expm1(-whole.mean) / whole.mean
        saved, low, high = (each_s * r for r in (look.mean, look.low, look.high))
    return KnobEffect(saved_s=saved, low_s=low, high_s=high, rounds=rounds)
