"""What the verdict's launches say in each mood, and what is open of a mood in which the winner was not measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from advisor.protocol.base import Value
from advisor.protocol.measured.trials import Contrast, Purpose
from advisor.tuning.history.comparisons import Comparison, list_comparisons
from advisor.tuning.history.mood_causes import ends_slow_mood
from advisor.tuning.history.moods import (
    Cycle,
    Spell,
    cut_cycles,
    find_mood_border,
    keep_cycles,
    list_spells,
    mean_rate_over,
)
from advisor.tuning.history.record import Record
from advisor.tuning.measure.contrast import contrast_arms, merge_contrasts
from advisor.tuning.measure.sequential import InMood

_LEAST_CYCLES = 2
"""Cycles of a race in a mood from which they say something of it."""
_LEAST_MET = 6
"""Cycles in which a mood has to be met: fewer tell no error of their own."""
_LEAST_SHARE = 0.05
"""Share of a mood's cycles from which the winner's own mood in it is one, and no mishap."""


@dataclass(frozen=True)
class ByMood:
    """A strategy against the baseline, mood by mood."""

    slow: tuple[InMood, ...] = ()
    """In the baseline's slow mood, or in its only one: two where the strategy has moods of its own in it."""
    fast: tuple[InMood, ...] = ()
    """In its fast mood."""
    doubt: float = 0.0
    """By how much a mood that the baseline showed, and in which nothing raced the strategy, may lower the ln ratio."""

    @property
    def parts(self) -> tuple[InMood, ...]:
        """All of them; empty where there is one mood."""
        found = (*self.slow, *self.fast)
        return found if len(found) > 1 else ()


def split_by_mood(
    record: Record,
    changes: Mapping[str, Value],
    comparisons: Sequence[Comparison],
    launches: Sequence[Contrast],
) -> ByMood:
    """Return what the verdict's first launches say in each mood known by then; `comparisons` are all of its races.

    Where strategies need launches of their own no cycle tells which mood both were in: then moods are part of the noise
    from launch to launch.
    """
    met = {c.launch for c in comparisons}
    first = [session.id for session in record.sessions if session.id in met][: len(launches)]
    comparisons = [c for c in comparisons if c.launch in first]
    if any(c.strategy.session_id != c.reference.session_id for c in comparisons) or not comparisons:
        return ByMood()
    until = max(record.session[c.launch].created_at for c in comparisons)
    spells = [spell for spell in record.spells if record.session[spell.launch].created_at <= until]
    border = find_mood_border(spells)
    searched = [
        c
        for purpose in (Purpose.SEARCH, Purpose.REVERT)
        for c in list_comparisons(record, purpose, changes)
        if record.session[c.launch].created_at <= until
    ]
    theirs = list_spells([c.strategy for c in (*searched, *comparisons)], record.races)
    own_border = find_mood_border(theirs)
    if border is None and own_border is None:
        return ByMood()
    is_slow, is_own_slow = _mark_slow(spells, border), _mark_slow(theirs, own_border)
    seen, before = (_collect(found, is_slow, is_own_slow) for found in (comparisons, searched))
    apart = {slow: [spell for spell in spells if spell.is_slow(border) == slow] for slow in (True, False)}
    sides = {slow: _weigh(seen, before, slow, side) for slow, side in apart.items()}
    missing = next((slow for slow, side in apart.items() if side and not sides[slow]), None)
    if missing is None or not sides[not missing]:
        return ByMood(sides[True], sides[False])
    if not missing:
        held = _hold_against(launches, theirs, first, apart[False])
        return ByMood(sides[True], (InMood(held, _count_samples(apart[False]), is_bound=True),))
    if ends_slow_mood(record, changes):
        # Beside a slow baseline its races were hardly slower: there it brings more than in the fast mood.
        return ByMood(sides[True], sides[False])
    moods_apart = math.log(mean_rate_over(apart[False]) / mean_rate_over(apart[True]))
    return ByMood(sides[True], sides[False], doubt=_bound_slow(fmean(k.total for k in launches), moods_apart))


def _hold_against(
    launches: Sequence[Contrast], theirs: Sequence[Spell], first: Sequence[str], fast: Sequence[Spell]
) -> tuple[Contrast, ...]:
    """Return what each launch would say had the baseline been fast, and the strategy as it was.

    The fast mood may be the end of what makes the baseline slow, which leaves the strategy as it is; whatever else it
    is makes the strategy faster as well.
    """
    baseline = math.log(mean_rate_over(fast))
    found = []
    for launch, contrast in zip(first, launches, strict=True):
        level = math.log(mean_rate_over([spell for spell in theirs if spell.launch == launch])) - baseline
        found.append(contrast.model_copy(update={"mean": level, "total": level, "per_step": level}))
    return tuple(found)


def _bound_slow(log_ratio: float, apart: float) -> float:
    """By how much the ln ratio may be lower in a slow mood that was not raced; the moods' rates are `apart` in ln.

    It takes seconds of every step, as many of a faster one: a ratio of R becomes (1 + g) R / (1 + g R), where g is how
    much longer a step takes.
    """
    longer = math.expm1(apart)
    return max(0.0, math.log1p(longer * math.exp(log_ratio)) - apart)


def _mark_slow(spells: Sequence[Spell], border: float | None) -> Mapping[Cycle, bool]:
    """For every cycle, by block and place, whether it lies in the slow mood; without moods none does."""
    return {cycle: spell.is_slow(border) for spell in spells for cycle in spell.cycles}


def _collect(
    comparisons: Sequence[Comparison],
    is_slow: Mapping[Cycle, bool],
    is_own_slow: Mapping[Cycle, bool],
) -> Mapping[tuple[bool, bool], Mapping[str, list[Contrast]]]:
    """(mood of the baseline, own mood of the strategy) -> launch -> contrasts of the cycles in them."""
    found: dict[tuple[bool, bool], dict[str, list[Contrast]]] = {}
    for comparison in comparisons:
        ours, theirs = comparison.strategy.result, comparison.reference.result
        if ours is None or theirs is None:
            continue
        count = min(len(cut_cycles(ours)), len(cut_cycles(theirs)))
        moods = [
            (
                is_slow.get((comparison.reference.id, place), False),
                is_own_slow.get((comparison.strategy.id, place), False),
            )
            for place in range(count)
        ]
        for mood in set(moods):
            kept = [other == mood for other in moods]
            if sum(kept) < _LEAST_CYCLES:
                continue
            contrast = contrast_arms(keep_cycles(ours, kept), keep_cycles(theirs, kept))
            if contrast is not None and contrast.cycles:
                found.setdefault(mood, {}).setdefault(comparison.launch, []).append(contrast)
    return found


def _weigh(
    seen: Mapping[tuple[bool, bool], Mapping[str, list[Contrast]]],
    before: Mapping[tuple[bool, bool], Mapping[str, list[Contrast]]],
    slow: bool,
    spells: Sequence[Spell],
) -> tuple[InMood, ...]:
    """What was seen in one mood of the baseline, whose `spells` these are, apart by the strategy's own.

    Of a mood that the verdict has not met, what was seen `before`.
    """
    parts = []
    for own in (True, False):
        for launches, is_earlier in ((seen.get((slow, own), {}), False), (before.get((slow, own), {}), True)):
            contrasts = tuple(merge_contrasts(races) for races in launches.values())
            if (cycles := sum(contrast.cycles for contrast in contrasts)) >= _LEAST_MET:
                parts.append((contrasts, cycles, is_earlier))
                break
    whole = sum(cycles for _, cycles, _ in parts)
    parts = [part for part in parts if part[1] >= _LEAST_SHARE * whole]
    whole = sum(cycles for _, cycles, _ in parts)
    samples = _count_samples(spells)
    return tuple(
        InMood(contrasts, samples * cycles / whole, is_earlier) for contrasts, cycles, is_earlier in parts
    )


def _count_samples(spells: Sequence[Spell]) -> float:
    """Samples of all of these spells' time."""
    return mean_rate_over(spells) * math.fsum(s.stretch.seconds for s in spells) if spells else 0.0
