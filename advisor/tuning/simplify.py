"""The simplification: knobs of the finals' winner that do not earn their place go back to the baseline.

It comes before the confirmation, so that the strategy that is confirmed is the one that is advised. What it measures,
the winner against the winner without some knobs, is also the evidence for each knob that stays.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from advisor.protocol.base import Value
from advisor.protocol.jobs import Stage
from advisor.protocol.trials import Purpose, Session, Trial
from advisor.tuning.allowance import FEWEST_ROUNDS, USUAL_ROUNDS, affords, estimate_confirmation_s
from advisor.tuning.composition import join_names
from advisor.tuning.contender import Contender, Turn
from advisor.tuning.finals import choose_finalist
from advisor.tuning.main_effects import estimate_main_effects
from advisor.tuning.record import Record
from advisor.tuning.rounds import (
    Pair,
    estimate_round_s,
    find_missing,
    has_begun,
    is_past,
    last_round_of,
    list_pairs,
)
from advisor.tuning.space import build_space
from advisor.tuning.statistics import LogInterval, paired_interval
from advisor.tuning.take_back import Unit, list_units, take_back

ROUNDS = 4
"""Rounds of a comparison, half of them in each order, so that a steady drift cancels."""
MOST_ROUNDS = 8
_MOST_ROUNDS_IN_ALL = 120
_LOOK_LEVEL = 0.025
"""Level of one of the two looks at an interval (after 4 and after 8 rounds): together they err in 5 % of cases."""
NEGLIGIBLE = 0.005
"""A knob has to bring this much, in log units of throughput."""


@dataclass(frozen=True)
class Comparison:
    """The winner so far against itself without some knobs."""

    winner: Trial
    without: Trial
    knobs: tuple[str, ...]
    """The knobs that went back to the baseline's value."""
    pairs: tuple[Pair, ...]
    """Each round: the winner's block as `baseline`, the other's as `strategy`."""
    brings: LogInterval | None
    """What the knobs bring: ln(rate with / without) of typical steps, or over the total time where only that decides,
    with its 95 % interval; None below two rounds."""
    is_over: bool
    """Whether enough rounds are measured to decide."""
    is_taken_back: bool
    """Whether the knobs do not earn their place."""

    @property
    def wants_more(self) -> bool:
        """Whether more rounds could tell better."""
        if not self.pairs or len(self.pairs) % ROUNDS or self.brings is None:
            return True
        undecided = self.brings.low <= NEGLIGIBLE <= self.brings.high
        return undecided and len(self.pairs) < MOST_ROUNDS


@dataclass(frozen=True)
class Simplification:
    """How the finals' winner became the strategy that is confirmed."""

    winner: Trial
    """The trial whose strategy goes into the confirmation."""
    comparisons: tuple[Comparison, ...] = ()


def simplify(record: Record) -> Simplification | None:
    """Return what the simplification has decided so far; None while there is no winner to simplify.

    It is read from its rounds in their order: each holds the winner at that moment and the winner without some knobs.
    The stage's first trial is the finals' winner.
    """
    finalist = choose_finalist(record)
    trials = record.trials_for(Purpose.REVERT)
    if finalist is None or not trials or trials[0].changes != finalist.changes:
        return None if finalist is None else Simplification(finalist)
    winner, comparisons = trials[0], list[Comparison]()
    known = {trial.number: trial for trial in trials}
    for held in _list_rounds(record, set(known)):
        last = comparisons[-1] if comparisons else None
        if last is not None and held <= {last.winner.number, last.without.number}:
            continue
        others = held - {winner.number}
        if len(others) == 1:
            comparisons.append(_compare(record, winner, known[others.pop()]))
            winner = comparisons[-1].without if comparisons[-1].is_taken_back else winner
    return Simplification(winner, tuple(comparisons))


def _list_rounds(record: Record, numbers: set[int]) -> list[set[int]]:
    """The trials that each round of the simplification holds, in the order of the rounds."""
    rounds: dict[int, set[int]] = {}
    for block in record.history.blocks:
        if block.round is not None and block.trial_number in numbers:
            rounds.setdefault(block.round, set()).add(block.trial_number)
    return [rounds[number] for number in sorted(rounds)]


def choose_winner(record: Record) -> Trial | None:
    """Return the trial whose strategy goes into the confirmation; None when nothing of the search can be."""
    done = simplify(record)
    return done.winner if done else None


def next_revert(record: Record, live: Session | None) -> Turn | None:
    """Return the next block of the simplification; None when it is over, not needed, or does not fit.

    The knobs that the search's scores call negligible go back together first; then one at a time, the least
    important first. Every four rounds begin only where they and a confirmation of usual length behind them still fit.
    """
    state = None if is_past(record, Stage.SIMPLIFY) else simplify(record)
    if state is None:
        return None
    begun = state.comparisons[-1] if state.comparisons else None
    winner: Mapping[str, Value] = state.winner.changes
    ahead, behind = ROUNDS, USUAL_ROUNDS
    if begun is not None and begun.wants_more and not record.has_failed_anywhere(begun.without.changes):
        winner = begun.winner.changes
        if len(begun.pairs) % ROUNDS:
            ahead, behind = 1, FEWEST_ROUNDS
        picked: tuple[Mapping[str, Value], tuple[str, ...]] | None = (begun.without.changes, begun.knobs)
    else:
        picked = _pick(record, state)
    if picked is None:
        return None
    without, knobs = picked
    what = f"whether {join_names(knobs)} earn{'s' if len(knobs) == 1 else ''} {_their(knobs)} place"
    pair = [
        Contender(Purpose.REVERT, winner, f"The finals' winner, to see {what}."),
        Contender(Purpose.REVERT, without, f"The winner without {join_names(knobs)}, to see {what}."),
    ]
    first = last_round_of(record, {Purpose.FINAL}) + 1
    round_ = _round_for(record, pair, first)
    order = pair if (round_ - first) % 2 == 0 else pair[::-1]
    missing = find_missing(record, round_, order, live, winner)
    if missing is None or round_ - first >= _MOST_ROUNDS_IN_ALL:
        return None
    launches = 0 if live else 1
    rest = ahead * estimate_round_s(record, pair) + launches * record.startup_s
    fits = rest + estimate_confirmation_s(record, behind) <= record.remaining_s
    if not affords(record, 1, launches) or not (fits or has_begun(record, round_, live)):
        return None
    side = "with" if missing is pair[0] else "without"
    because = f"Simplifying: {what}; the winner {side} {'it' if len(knobs) == 1 else 'them'}."
    return Turn(Stage.SIMPLIFY, missing, because, round=round_)


def _compare(record: Record, winner: Trial, without: Trial) -> Comparison:
    """Judge the rounds so far.

    Knobs stay that speed up typical steps, unless they surely lose over the total time, and those that surely win
    over the total time.
    """
    pairs = list_pairs(record, Purpose.REVERT, without.changes, against=winner)
    typical = paired_interval([-pair.typical for pair in pairs], _LOOK_LEVEL)
    total = paired_interval([-pair.log_ratio for pair in pairs], _LOOK_LEVEL)
    brings, is_useless = typical, False
    if typical is not None and total is not None:
        is_useless = typical.mean < NEGLIGIBLE
        if (is_useless and total.low > 0) or (not is_useless and total.high < 0):
            brings, is_useless = total, not is_useless
    is_over = len(pairs) >= ROUNDS
    return Comparison(
        winner=winner,
        without=without,
        knobs=tuple(name for name in winner.changes if name not in without.changes),
        pairs=tuple(pairs),
        brings=brings,
        is_over=is_over,
        is_taken_back=is_over and is_useless and not record.has_failed_anywhere(without.changes),
    )


def units_of(record: Record, changes: Mapping[str, Value]) -> list[Unit]:
    """Return the knobs of a strategy in the groups that can go back on their own; one group of all when unknown."""
    facts = record.job.facts
    if facts is None or len(changes) < 2:
        return [tuple(changes)]
    return list_units(build_space(record.job, facts, record.probe_blocks).composer, changes)


def _pick(record: Record, state: Simplification) -> tuple[Mapping[str, Value], tuple[str, ...]] | None:
    """Return the next strategy to hold against the winner with the knobs it takes back; None when all are judged."""
    changes = state.winner.changes
    units = units_of(record, changes)
    if len(units) < 2 or record.job.facts is None:
        return None
    composer = build_space(record.job, record.job.facts, record.probe_blocks).composer
    effects = estimate_main_effects(record, changes, units)
    ranked = sorted(units, key=lambda unit: (effects[unit], unit))
    together = [unit for unit in ranked[:-1] if effects[unit] < NEGLIGIBLE]
    wishes = [tuple(name for unit in together for name in unit)] if len(together) > 1 else []
    judged = {comparison.knobs for comparison in state.comparisons}
    for wish in [*wishes, *ranked] if not judged else ranked:
        smaller = take_back(composer, changes, wish)
        if smaller is None or record.has_failed_anywhere(smaller):
            continue
        knobs = tuple(name for name in changes if name not in smaller)
        if knobs not in judged:
            return smaller, knobs
    return None


def _round_for(record: Record, pair: list[Contender], first: int) -> int:
    """The latest round of the simplification while it lacks a block of this pair and holds nobody else's."""
    last = last_round_of(record, {Purpose.REVERT})
    if not last:
        return first
    numbers = {t.number for c in pair if (t := record.find_trial(c.purpose, c.changes)) is not None}
    held = {b.trial_number for b in record.history.blocks if b.round == last}
    is_ours = held <= numbers and find_missing(record, last, pair, None, pair[0].changes) is not None
    return last if is_ours else last + 1


def _their(knobs: tuple[str, ...]) -> str:
    return "its" if len(knobs) == 1 else "their"
