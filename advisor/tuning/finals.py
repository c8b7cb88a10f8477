"""The finals: the best strategies of the search against each other, halved leg by leg, and the winner they leave."""

import math
import random
from collections.abc import Sequence
from statistics import fmean

from advisor.protocol.jobs import Stage
from advisor.protocol.knobs import Effect
from advisor.protocol.trials import Purpose, Session, Trial
from advisor.tuning.allowance import (
    FEWEST_ROUNDS,
    FINALISTS,
    USUAL_ROUNDS,
    affords,
    estimate_confirmation_s,
)
from advisor.tuning.composition import describe_changes, key_of
from advisor.tuning.contender import BASELINE, Contender, Turn
from advisor.tuning.ended_search import search_as_it_ended
from advisor.tuning.record import Record
from advisor.tuning.rounds import (
    estimate_round_s,
    find_missing,
    has_begun,
    is_past,
    list_pairs,
    order_hot_first,
)
from advisor.tuning.sampler import mix_seed
from advisor.tuning.search import rank_trials

_LEGS = ((2, 3), (3, 2), (4, 1))
"""Sequential halving (research: 27 windows from five finalists): rounds of a leg, and how many it leaves."""
_MOST_FINALISTS = 5
_ALIKE = 0.005
_ALIKE_AT_MOST = 0.05
_MATTERS = 0.01
"""Difference between finalists, in log units of throughput, that is worth more rounds."""
_FAR_BEHIND = 3.0
"""Standard errors behind the best at which a finalist is out whatever the leg leaves."""


def rank_for_finals(record: Record, effect: Effect | None = None) -> list[tuple[float, Trial]]:
    """Return the search's ranking as it stood when it ended, without strategies that have failed since."""
    key = ("rank_for_finals", effect)
    if key not in record.memo:
        record.memo[key] = rank_trials(search_as_it_ended(record), effect)
    ranked: list[tuple[float, Trial]] = record.memo[key]
    return [(score, trial) for score, trial in ranked if not record.has_failed_anywhere(trial.changes)]


def next_final(record: Record, live: Session | None) -> Turn | None:
    """Return the next block of the finals; None when they are over, not needed, or do not fit.

    Each leg is some rounds of all who are left and the baseline, in an order of chance; then the worse are out. A
    round begins only where a confirmation of usual length (in the first leg: of the fewest rounds) still fits
    behind it.
    """
    if is_past(record, Stage.FINALS):
        return None
    line_up: Sequence[Contender] = _list_finalists(record)
    round_ = 0
    for leg, (rounds, kept) in enumerate(_LEGS):
        if not 2 <= len(line_up) < record.seats:
            return None
        behind = estimate_confirmation_s(record, USUAL_ROUNDS if leg else FEWEST_ROUNDS)
        for _ in range(rounds):
            round_ += 1
            order = [BASELINE, *line_up]
            random.Random(mix_seed(record.job.spec.seed, round_)).shuffle(order)  # noqa: S311
            missing = find_missing(record, round_, order_hot_first(record, order), live)
            if missing is None:
                continue
            launches = 0 if live else 1
            rest = estimate_round_s(record, order) + launches * record.startup_s + behind
            begun = has_begun(record, round_, live)
            if not affords(record, 1, launches) or (not begun and rest > record.remaining_s):
                return None
            because = f"Finals, round {round_}, {len(line_up)} strategies left: {describe_changes(missing.changes)}."
            return Turn(Stage.FINALS, missing, because, round=round_)
        line_up = _keep_best(record, line_up, kept, round_)
        if _are_equal(record, line_up):
            return None
    return None


def choose_finalist(record: Record) -> Trial | None:
    """Return the trial whose strategy the finals leave; that of the search where there were none.

    Among finalists that are alike the smallest strategy wins. Strategies that failed anywhere are left out; None
    when no search strategy of an allowed rung finished.
    """
    line_up = [Contender(Purpose.FINAL, t.changes, t.because) for t in record.trials_for(Purpose.FINAL)]
    round_ = 0
    for rounds, kept in _LEGS[:-1]:
        round_ += rounds
        if not _has_complete_round(record, line_up, round_):
            break
        line_up = _keep_best(record, line_up, kept, round_)
    scored = _score(record, line_up, None)
    if scored:
        rounds_seen = max(count for _, count, _ in scored)
        seasoned = [(mean, contender) for mean, count, contender in scored if 2 * count >= rounds_seen]
        least = max(mean for mean, _ in seasoned) - _alike_within(record, rounds_seen)
        alike = [(len(c.changes), -mean, _number_of(record, c)) for mean, c in seasoned if mean >= least]
        return record.history.trial(min(alike)[2])
    ranked = rank_for_finals(record)
    return ranked[0][1] if ranked else None


def _has_complete_round(record: Record, line_up: Sequence[Contender], round_: int) -> bool:
    """Whether every one of the line-up that has not failed was compared in this round."""
    sound = [c for c in line_up if not record.has_failed_anywhere(c.changes)]
    return bool(sound) and all(
        any(pair.round == round_ for pair in list_pairs(record, Purpose.FINAL, c.changes)) for c in sound
    )


def _keep_best(record: Record, line_up: Sequence[Contender], kept: int, round_: int) -> list[Contender]:
    """Return who goes on after this round: the best so many, none of them far behind the best."""
    scored = sorted(_score(record, line_up, round_ + 1), key=lambda entry: -entry[0])[:kept]
    if not scored:
        return []
    least = scored[0][0] - _FAR_BEHIND * _alike_within(record, scored[0][1])
    return [contender for mean, _, contender in scored if mean >= least]


def _are_equal(record: Record, line_up: Sequence[Contender]) -> bool:
    """Whether those who are left surely differ by less than matters, so that more rounds decide nothing."""
    scored = _score(record, line_up, None)
    if not scored:
        return False
    means = [mean for mean, _, _ in scored]
    error = (record.run_noise or 0.0) * math.sqrt(2.0 / min(count for _, count, _ in scored))
    return record.run_noise is not None and max(means) - min(means) + 2.0 * error <= _MATTERS


def _score(
    record: Record, line_up: Sequence[Contender], before: int | None
) -> list[tuple[float, int, Contender]]:
    """Typical log ratio to the baseline, rounds it rests on, contender; without those that failed.

    What the search made of the strategy counts as one round more, and a quarter is trimmed at each end: two rounds
    alone would let one hiccup of the machine throw out the best. A convergence strategy's ratio counts as much as a
    sample taught under it when the search ended (goodput).
    """
    searched = {key_of(trial.changes): score for score, trial in rank_for_finals(record)}
    ended = search_as_it_ended(record)
    taught = {
        key_of(trial.changes): ended.efficiencies[trial.number].log
        for trial in ended.history.trials
        if trial.number in ended.efficiencies
    }
    found = []
    for contender in line_up:
        pairs = list_pairs(record, Purpose.FINAL, contender.changes, before)
        if pairs and not record.has_failed_anywhere(contender.changes):
            key = key_of(contender.changes)
            ratios = [pair.typical + taught.get(key, 0.0) for pair in pairs]
            found.append(
                (_trim([*ratios, *([searched[key]] if key in searched else [])]), len(pairs), contender)
            )
    return found


def _trim(values: Sequence[float]) -> float:
    """Return the mean without a quarter of the values at each end (rounded to the nearest number of values)."""
    cut = min(round(len(values) / 4.0), (len(values) - 1) // 2)
    return fmean(sorted(values)[cut : len(values) - cut])


def _alike_within(record: Record, rounds: int) -> float:
    """Return how far apart, in log units, finalists still count as alike: the error of so many rounds' mean ratio."""
    error = (record.run_noise or 0.0) * math.sqrt(2.0 / max(1, rounds))
    return min(_ALIKE_AT_MOST, max(_ALIKE, error))


def _number_of(record: Record, contender: Contender) -> int:
    trial = record.find_trial(contender.purpose, contender.changes)
    return trial.number if trial else -1


def _list_finalists(record: Record) -> list[Contender]:
    """The best of the search; the best strategy that makes do with a part of the first one's changes is among them.

    Who has begun stays in; once the second round has begun nobody joins.
    """
    entered = [
        Contender(Purpose.FINAL, t.changes, t.because)
        for t in record.trials_for(Purpose.FINAL)
        if not record.has_failed_anywhere(t.changes)
    ]
    if any(b.round is not None and b.round >= 2 for b in record.history.blocks):
        return entered
    ranked = rank_for_finals(record)
    gaining = [trial for score, trial in ranked if score > 0]
    parts = [trial for trial in gaining[1:] if trial.changes.items() < gaining[0].changes.items()]
    chosen = [*gaining[:1], *parts[:1], *(trial for trial in gaining[1:] if trial not in parts[:1])]
    chosen = chosen or [trial for _, trial in ranked[:1]]
    new = [
        Contender(
            Purpose.FINAL,
            trial.changes,
            f"One of the search's best (trial {trial.number}); the finals decide which goes on.",
        )
        for trial in chosen
    ]
    seats = _count_affordable(record, new)
    known = {key_of(c.changes) for c in entered}
    return [*entered, *(c for c in new[:seats] if key_of(c.changes) not in known)][: max(seats, len(entered))]


def _count_affordable(record: Record, contenders: Sequence[Contender]) -> int:
    """Return how many finalists the first leg can hold with a confirmation of usual length behind it.

    A short budget gets as many as leave room for a confirmation of the fewest rounds, at most three.
    """
    first_leg = _LEGS[0][0]
    for most, behind in ((_MOST_FINALISTS, USUAL_ROUNDS), (FINALISTS, FEWEST_ROUNDS)):
        for seats in range(min(most, len(contenders)), 1, -1):
            leg = first_leg * estimate_round_s(record, [BASELINE, *contenders[:seats]])
            if leg + estimate_confirmation_s(record, behind) <= record.remaining_s + _spent_in_rounds_s(
                record
            ):
                return seats
    return 1


def _spent_in_rounds_s(record: Record) -> float:
    """What the first round has cost so far: it was affordable when it began, and stays so."""
    return sum(
        (block.finished_at - block.issued_at).total_seconds()
        for block in record.history.blocks
        if block.round is not None and block.finished_at is not None
    )
