"""The record as it stood when the search ended: what is measured later changes nothing of what it found."""

import math
from dataclasses import dataclass
from datetime import datetime

from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Purpose, Session, SessionState
from advisor.tuning.history.launches import believe_luck
from advisor.tuning.history.record import Record
from advisor.tuning.history.scores import score_trials


def search_as_it_ended(record: Record) -> Record:
    """Return the record as it stood when the last race before this budget's first one behind the search had ended;
    itself while none has begun."""
    blocks = record.history.blocks
    searched = {t.number for t in record.history.trials if t.purpose in {Purpose.BASELINE, Purpose.SEARCH}}
    began = record.began_at()
    mine = [b for b in blocks if began is None or b.issued_at >= began]
    later = next((b.race for b in mine if b.trial_number not in searched), None)
    place = next((i for i, b in enumerate(blocks) if b.race == later), None)
    if place is None:
        return record
    at = (place and blocks[place - 1].finished_at) or blocks[place].issued_at
    kept = searched | {b.trial_number for b in blocks[:place]}
    history = record.history.model_copy(
        update={
            "blocks": blocks[:place],
            "trials": tuple(t for t in record.history.trials if t.number in kept),
            "sessions": tuple(_as_it_stood(s, at) for s in record.sessions if s.created_at <= at),
        }
    )
    return Record(record.job, history, at, record.quick)


def _as_it_stood(session: Session, at: datetime) -> Session:
    if session.ended_at is None or session.ended_at <= at:
        return session
    return session.model_copy(update={"ended_at": None, "outcome": None, "state": SessionState.RUNNING})


_Z_975 = 1.96
"""97.5 % quantile of the normal distribution."""


@dataclass(frozen=True)
class Others:
    """What the search saw of the allowed strategies beside the one that the answer is about."""

    count: int
    best: float
    """ln(throughput / baseline's) of the one that looked fastest."""
    most: float
    """The same that none of them exceeds, with 97.5 % confidence: the largest of their upper bounds lies below the
    fastest one's truth only where that one's own bound does."""


def judge_others(record: Record, told: Changes) -> Others | None:
    """Return how fast the search saw the others; None where it measured none."""
    allowed, scores = record.job.spec.allow.rank, score_trials(record).throughput
    known = {
        trial.changes: scores[trial.number]
        for trial in record.trials_for(Purpose.SEARCH)
        if trial.number in scores and trial.effect.rank <= allowed and trial.changes != told
    }
    if not known:
        return None
    # The search sees most strategies in one launch, whose luck is not in the scores.
    luck = believe_luck(record, {}).spread
    most = max(score.mean + _Z_975 * math.hypot(score.error, luck) for score in known.values())
    return Others(len(known), max(score.mean for score in known.values()), most)
