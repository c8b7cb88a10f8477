"""The confirmation: fresh interleaved rounds of baseline and winner, until the interval of their ratio decides.

Only these rounds are reported. Looks at every round from the fourth on share the 5 % error: the level of a single
look is calibrated so that all looks together claim a difference that is not there in at most 5 % of jobs.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor.protocol.base import Value
from advisor.protocol.jobs import Stage
from advisor.protocol.knobs import Effect
from advisor.protocol.trials import Purpose, Session, Trial
from advisor.tuning.allowance import FEWEST_ROUNDS, affords, look_level
from advisor.tuning.composition import describe_changes
from advisor.tuning.contender import BASELINE, Contender, Turn
from advisor.tuning.finals import rank_for_finals
from advisor.tuning.guard import check_losses
from advisor.tuning.record import Record
from advisor.tuning.rounds import (
    Pair,
    find_missing,
    has_begun,
    is_paired_within,
    last_round_of,
    list_pairs,
    order_hot_first,
)
from advisor.tuning.simplify import choose_winner
from advisor.tuning.statistics import LogInterval, paired_interval

_TIGHT = 0.01
_FEWEST_ELSEWHERE = 2
"""Rounds that must lie outside the session with the most rounds, before anything is decided."""


@dataclass(frozen=True)
class Confirmation:
    """What the completed rounds say about one strategy."""

    changes: Mapping[str, Value]
    pairs: tuple[Pair, ...]
    interval: LogInterval | None
    """None below two rounds."""
    is_complete: bool
    """Whether the rounds are enough, in number and in launches, to stand on."""


def confirm(record: Record, trial: Trial) -> Confirmation:
    """Return what the rounds measured so far say about a strategy against the baseline."""
    return _judge(record, list_pairs(record, Purpose.CONFIRM, trial.changes), trial.changes)


def is_confirmed(record: Record) -> bool:
    """Whether the winner has the rounds that a verdict stands on."""
    winner = choose_winner(record)
    return winner is not None and confirm(record, winner).is_complete


def list_ladder(record: Record, winner: Trial | None) -> list[Trial]:
    """Return the best strategy of every rung that is measured beside the verdict.

    Those above what the job allows, and those below the winner's own; only where the search, as it ended, saw a gain.
    """
    top = winner.effect.rank if winner else 0
    ladder = []
    for effect in Effect:
        if effect.rank > record.job.spec.allow.rank or effect.rank < top:
            ladder += [trial for score, trial in rank_for_finals(record, effect)[:1] if score > 0]
    return ladder


def next_confirmation(record: Record, live: Session | None) -> Turn | None:
    """Return the confirmation's next block; None when it has decided, or the budget ends it."""
    winner = choose_winner(record)
    first = last_round_of(record, {Purpose.FINAL, Purpose.REVERT}) + 1
    current = last_round_of(record, {Purpose.CONFIRM})
    most = first + 2 * record.job.spec.budget.max_rounds
    for round_ in (max(current, first), max(current, first) + 1):
        line_up = _line_up(record, winner, round_, first)
        if not line_up or round_ > most:
            return None
        missing = find_missing(record, round_, line_up, live)
        if missing is None:
            continue
        begun = has_begun(record, round_, live)
        fresh = live is not None and _needs_fresh_session(record, winner, round_, live, begun)
        launches = 1 if live is None or fresh else 0
        blocks = 1 if begun else len(line_up) + (1 if launches and record.has_lead_in else 0)
        if not affords(record, blocks, launches):
            return None
        because = f"Confirmation, round {round_ - first + 1}: {describe_changes(missing.changes)}."
        return Turn(Stage.CONFIRM, missing, because, round=round_, fresh=fresh)
    return None


def _line_up(record: Record, winner: Trial | None, round_: int, first: int) -> list[Contender]:
    """Who takes part in a round; it depends on the rounds before only, so that it stays put while one runs.

    Until the verdict is decided one other rung at a time joins, so that the ladder never costs more than a third of
    the blocks: first the allowed one that the verdict falls back to if the guard refuses the winner, then the others
    in turn. What the rungs still lack after the verdict is measured without the winner.
    """
    pairs = list_pairs(record, Purpose.CONFIRM, winner.changes, round_) if winner else []
    decided = winner is None or _is_decided(record, winner, pairs)
    lacking = [
        trial
        for trial in list_ladder(record, winner)
        if len(list_pairs(record, Purpose.CONFIRM, trial.changes, round_)) < FEWEST_ROUNDS
    ]
    if not decided and lacking:
        fallback = [trial for trial in lacking if trial.effect.rank <= record.job.spec.allow.rank]
        lacking = fallback[:1] or [lacking[round_ % len(lacking)]]
    chosen = [*([winner] if winner and not decided else []), *lacking][: max(1, record.seats - 1)]
    if not chosen:
        return []
    line_up = order_hot_first(record, [BASELINE, *(_contender(trial, winner) for trial in chosen)])
    return line_up if (round_ - first) % 2 == 0 else line_up[::-1]


def _contender(trial: Trial, winner: Trial | None) -> Contender:
    if winner is not None and trial is winner:
        because = f"The winner ({describe_changes(trial.changes)}), measured afresh."
    else:
        because = f"The best seen on the {trial.effect.value} rung ({describe_changes(trial.changes)}), for the ladder."
    return Contender(Purpose.CONFIRM, trial.changes, because)


def _is_decided(record: Record, winner: Trial, pairs: Sequence[Pair]) -> bool:
    """Whether more rounds cannot change the verdict, or there are no more; a loss still in doubt asks for more."""
    spec = record.job.spec
    if len(pairs) >= spec.budget.max_rounds:
        return True
    judged = _judge(record, pairs, {})
    interval = judged.interval
    if not judged.is_complete or interval is None:
        return False
    if interval.high < math.log1p(spec.min_gain):
        return True
    if interval.low <= 0 or interval.half_width > max(_TIGHT, interval.mean / 3.0):
        return False
    return check_losses(record, winner.effect, pairs).admits(winner.effect)


def _judge(record: Record, pairs: Sequence[Pair], changes: Mapping[str, Value]) -> Confirmation:
    per_session = Counter(pair.session_id for pair in pairs)
    elsewhere = len(pairs) - max(per_session.values(), default=0)
    return Confirmation(
        changes=changes,
        pairs=tuple(pairs),
        interval=paired_interval([pair.log_ratio for pair in pairs], look_level(record.job.spec, len(pairs))),
        is_complete=len(pairs) >= FEWEST_ROUNDS and elsewhere >= _FEWEST_ELSEWHERE,
    )


def _needs_fresh_session(
    record: Record, winner: Trial | None, round_: int, live: Session, begun: bool
) -> bool:
    """Whether this round belongs in another launch than the live one.

    The search's own session never confirms. Sessions hold 2, 4, 8, … rounds, at most half of all: an early decision
    rests on two launches, a late one on several. A comparison across launches takes new ones for every round,
    because rounds that share a launch share its luck.
    """
    blocks = [b for b in record.history.blocks if b.session_id == live.id]
    confirming = {Purpose.BASELINE, Purpose.CONFIRM}
    numbers = {t.number for t in record.history.trials if t.purpose not in confirming}
    if any(b.trial_number in numbers for b in blocks):
        return True
    if begun or winner is None:
        return False
    if not is_paired_within(record, winner.changes):
        return any(b.round is not None and b.round != round_ for b in blocks)
    pairs = list_pairs(record, Purpose.CONFIRM, winner.changes, round_)
    held: Counter[str] = Counter(pair.session_id for pair in pairs)
    earlier = sum(1 for session_id in held if session_id != live.id)
    quota = min(2 ** (earlier + 1), max(2, record.job.spec.budget.max_rounds // 2))
    return bool(held[live.id] >= quota)
