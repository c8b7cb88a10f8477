"""What the user named comes first: the sound combinations of own knobs, all where they fit, else a set that fills them.

Each is measured by itself, so that what it brings is known before anything of the search's own rides along.
"""

import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from advisor.protocol.base import Value
from advisor.protocol.kinds import Place
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Purpose
from advisor.protocol.views import NamedCombinations
from advisor.tuning.decisions import Candidate
from advisor.tuning.history.budget import UNTIMED
from advisor.tuning.history.record import Record
from advisor.tuning.search.candidate_pool import compose_new
from advisor.tuning.space.space import Dimension, Space

_MOST_LISTED = 4096
"""Combinations that are looked through; of more, so many are drawn."""
_VERDICT_LAUNCHES = 4
"""Launches that are left for the verdict, two of the strategy and two of the script as it stands: it needs no less."""
_MOST_LEFT = 0.5
"""Share of the budget that is left for them at most: what no launch has measured cannot be proved either."""
_FIRST_SHARE = 0.67
"""Share of what the budget holds that goes to the set which fills the space; the sampler has the rest."""


@dataclass(frozen=True)
class Named:
    """The combinations of what the user named, and what the budget holds of them."""

    combinations: tuple[Changes, ...]
    """All sound ones but today's; of a large space as many as were drawn."""
    done: int
    """Those that were tried."""
    next: tuple[Changes, ...]
    """Those that are measured before any idea of the search's own, in this order."""
    each_s: float
    """What one of them takes, in seconds."""
    is_whole: bool
    """Whether these are all there are, and no draw from a large space."""

    def count(self, record: Record) -> NamedCombinations:
        """Return it in figures, for the job's start."""
        count, most = len(self.combinations), record.job.spec.budget.max_trials
        return NamedCombinations(
            combinations=count,
            is_whole=self.is_whole,
            first=self.done + len(self.next),
            each_s=self.each_s,
            # The probe's launch and the verdict's come beside them, and one that takes longer.
            needs_s=(count + _VERDICT_LAUNCHES + 2) * self.each_s,
            needs_trials=count if count > most else None,
        )


def find_named(record: Record, space: Space) -> Named | None:
    """Return what the user named, as far as the job allows it; None where nothing was.

    What the live session was launched for comes first, whatever time is left: its launch is paid.
    """
    own = [d for d in space.dimensions if d.knob.place is Place.OWN]
    if not own or record.job.spec.verify:
        return None
    found = [
        changes
        for changes in compose_new(space, _list_wishes(own, record.job.spec.seed), ())
        if record.effect_of(changes).rank <= record.job.spec.allow.rank
    ]
    tried = set(record.tried)
    left = [changes for changes in found if changes not in tried]
    done = [space.context.baseline, *(changes for changes in found if changes in tried)]
    most = min(len(left), max(0, record.job.spec.budget.max_trials - len(tried)))
    ordered = _spread_out(space, own, left, done, most, record.job.spec.seed)
    fit, each_s = _count_that_fit(record, ordered)
    count = len(found) - len(left)
    planned = len(found) if count + fit >= len(found) else math.ceil(_FIRST_SHARE * (count + fit))
    chosen = ordered[: max(0, planned - count)]
    if cold := record.cold_of_new_launch:
        chosen = [
            *(c for c in left if record.required_cold(c) == cold),
            *(c for c in chosen if record.required_cold(c) != cold),
        ]
    is_whole = math.prod(len(d.values) for d in own) <= _MOST_LISTED
    return Named(tuple(found), count, tuple(chosen), each_s, is_whole)


def next_named(record: Record, space: Space) -> list[Candidate]:
    """Return the combinations that are measured before anything else, the next one first; empty where none is left."""
    named = find_named(record, space)
    if named is None:
        return []
    return [
        Candidate(
            Purpose.SEARCH,
            changes,
            f"Combination {named.done + place} of {len(named.combinations)} that you named: {changes.describe()}.",
        )
        for place, changes in enumerate(named.next, 1)
    ]


def keep_named(space: Space, changes: Mapping[str, Value]) -> Changes:
    """Return what a strategy has of the user's own knobs."""
    return Changes({n: v for n, v in changes.items() if space.composer.catalogue[n].place is Place.OWN})


def _list_wishes(own: Sequence[Dimension], seed: int) -> Iterable[dict[str, Value]]:
    names = [d.knob.name for d in own]
    if math.prod(len(d.values) for d in own) <= _MOST_LISTED:
        points: Iterable[Sequence[Value]] = itertools.product(*(d.values for d in own))
    else:
        dice = random.Random(seed)  # noqa: S311 - reproducible, not secret
        points = ([dice.choice(d.values) for d in own] for _ in range(_MOST_LISTED))
    return (dict(zip(names, point, strict=True)) for point in points)


def _count_that_fit(record: Record, ordered: Sequence[Changes]) -> tuple[int, float]:
    """How many of them, in this order, the search's time holds, and what each takes, in seconds."""
    wanted, facts = record.job.spec.measurement, record.job.facts
    step_s = record.step_s or (facts and facts.step_time_s_hint) or 0.0
    arm_s = record.trip_s + UNTIMED * max(wanted.block_s, wanted.min_steps * step_s)
    left_s = record.remaining_s - min(
        _MOST_LEFT * record.budget_s, _VERDICT_LAUNCHES * (record.startup_s + arm_s)
    )
    live = record.history.live_session()
    launched = {live.cold if live else Changes()}
    spent_s, fit = 0.0, 0
    for changes in ordered:
        cold = record.required_cold(changes)
        spent_s += arm_s
        if record.switches_at_launch or cold not in launched:
            spent_s += record.startup_s
            launched.add(cold)
        fit += spent_s <= left_s
    return fit, spent_s / len(ordered) if ordered else 0.0


def _spread_out(
    space: Space,
    own: Sequence[Dimension],
    left: Sequence[Changes],
    done: Sequence[Mapping[str, Value]],
    most: int,
    seed: int,
) -> list[Changes]:
    """Return combinations in an order in which each beginning fills the space.

    The next one has the values that were taken least often; of those the ends that the user expects to be faster, then
    what lies furthest from all that was taken. What is equal in that goes by the seed.
    """
    own_values = space.context.baseline
    dice = random.Random(seed)  # noqa: S311 - reproducible, not secret
    places = {c: tuple(d.index_of(c.get(d.knob.name, own_values[d.knob.name])) for d in own) for c in left}
    hinted = [_find_expected(d, space) for d in own]
    luck = {changes: dice.random() for changes in left}
    uses = [[0] * len(d.values) for d in own]
    nearest = dict.fromkeys(left, math.inf)
    waiting = dict.fromkeys(left)

    def take(at: Sequence[int]) -> None:
        for used, place in zip(uses, at, strict=True):
            used[place] += 1
        for changes in waiting:
            nearest[changes] = min(nearest[changes], _measure_apart(own, places[changes], at))

    def rate(changes: Changes) -> tuple[float, ...]:
        at = places[changes]
        taken = sum(used[place] for used, place in zip(uses, at, strict=True))
        expected = sum(place == end for place, end in zip(at, hinted, strict=True))
        return (-taken, expected, nearest[changes], luck[changes])

    for one in done:
        take([d.index_of(one.get(d.knob.name, own_values[d.knob.name])) for d in own])
    chosen: list[Changes] = []
    while waiting and len(chosen) < most:
        chosen.append(max(waiting, key=rate))
        del waiting[chosen[-1]]
        take(places[chosen[-1]])
    return chosen


def _find_expected(dimension: Dimension, space: Space) -> int:
    """The place of the only value that the knob's rule names; -1 where its owner expects nothing."""
    rules = dimension.knob.rule(space.context)
    return dimension.index_of(rules[0].value) if dimension.ordered and len(rules) == 1 else -1


def _measure_apart(own: Sequence[Dimension], one: Sequence[int], other: Sequence[int]) -> float:
    """How far two combinations are apart: each knob's whole range is 1, and so are two words."""
    squares = 0.0
    for dimension, a, b in zip(own, one, other, strict=True):
        width = max(1, len(dimension.values) - 1) if dimension.ordered else 1
        squares += min(1.0, abs(a - b) / width) ** 2
    return math.sqrt(squares)
