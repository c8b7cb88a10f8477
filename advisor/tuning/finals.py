"""The finals: the best strategies of the search against each other, and the winner they leave."""

import random
from collections.abc import Sequence
from statistics import fmean

from advisor.protocol.jobs import Stage
from advisor.protocol.trials import Purpose, Session, Trial
from advisor.tuning.allowance import (
    FEWEST_ROUNDS,
    FINALISTS,
    affords,
    estimate_confirmation_s,
    estimate_finals_s,
)
from advisor.tuning.composition import describe_changes
from advisor.tuning.contender import BASELINE, Contender, Turn
from advisor.tuning.record import Record
from advisor.tuning.rounds import (
    FIRST_CONFIRM_ROUND,
    LAST_FINAL_ROUND,
    find_missing,
    last_round,
    list_pairs,
    order_hot_first,
)
from advisor.tuning.sampler import mix_seed
from advisor.tuning.search import rank_trials

_ROUNDS = range(1, LAST_FINAL_ROUND + 1)
_ALIKE = 0.01
_ALIKE_AT_MOST = 0.05


def next_final(record: Record, live: Session | None) -> Turn | None:
    """Return the next block of the finals; None when they are over, not needed, or do not fit."""
    finalists = _list_finalists(record)
    if not 2 <= len(finalists) < record.seats or last_round(record, 0) >= FIRST_CONFIRM_ROUND:
        return None
    if not record.trials_for(Purpose.FINAL):
        rest = estimate_finals_s(record, len(finalists)) + estimate_confirmation_s(record, FEWEST_ROUNDS)
        if rest > record.remaining_s:
            return None
    for round_ in _ROUNDS:
        line_up = [BASELINE, *finalists]
        random.Random(mix_seed(record.job.spec.seed, round_)).shuffle(line_up)  # noqa: S311
        missing = find_missing(record, round_, order_hot_first(record, line_up), live)
        if missing is not None:
            if not affords(record, 1, launches=0 if live else 1):
                return None
            what = describe_changes(missing.changes)
            return Turn(
                Stage.FINALS, missing, f"Finals, round {round_} of {LAST_FINAL_ROUND}: {what}.", round=round_
            )
    return None


def choose_winner(record: Record) -> Trial | None:
    """Return the trial whose strategy goes into the confirmation: the best of the finals, else of the search.

    Among finalists that are alike the smallest strategy wins, so that no knob changes without earning its place.
    Strategies that failed anywhere are left out; None when no search strategy of an allowed rung finished.
    """
    ranked = rank_trials(record)
    finals: list[tuple[float, Trial]] = []
    for trial in record.trials_for(Purpose.FINAL):
        pairs = list_pairs(record, Purpose.FINAL, trial.changes, _ROUNDS)
        if pairs and not record.has_failed_anywhere(trial.changes):
            finals.append((fmean(pair.log_ratio for pair in pairs), trial))
    if finals:
        best = max(mean for mean, _ in finals)
        least = best - _alike_within(record)
        alike = [(len(trial.changes), -mean, trial.number) for mean, trial in finals if mean >= least]
        return record.history.trial(min(alike)[2])
    return ranked[0][1] if ranked else None


def _alike_within(record: Record) -> float:
    """Return how far apart, in log units, finalists still count as alike.

    The mean of two rounds' ratios of two noisy blocks is itself off by about the noise of one block.
    """
    return min(_ALIKE_AT_MOST, max(_ALIKE, record.run_noise or 0.0))


def _list_finalists(record: Record) -> Sequence[Contender]:
    """The best of the search; the best strategy that makes do with a part of the first one's changes is among them."""
    ranked = rank_trials(record)
    gaining = [trial for score, trial in ranked if score > 0]
    parts = [trial for trial in gaining[1:] if trial.changes.items() < gaining[0].changes.items()]
    chosen = [*gaining[:1], *parts[:1], *(trial for trial in gaining[1:] if trial not in parts[:1])][
        :FINALISTS
    ]
    chosen = chosen or [trial for _, trial in ranked[:1]]
    return [
        Contender(
            Purpose.FINAL,
            trial.changes,
            f"One of the search's best (trial {trial.number}); the finals decide which is confirmed.",
        )
        for trial in chosen
    ]
