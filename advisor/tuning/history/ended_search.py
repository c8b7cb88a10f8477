"""The record as it stood when the search ended: what is measured later changes nothing of what the search found."""

from datetime import datetime

from advisor.protocol.measured.trials import Purpose, Session, SessionState
from advisor.tuning.history.record import Record


def search_as_it_ended(record: Record) -> Record:
    """Return the record as it stood when this budget's first race behind the search began; itself while none has."""
    blocks = record.history.blocks
    searched = {t.number for t in record.history.trials if t.purpose in {Purpose.BASELINE, Purpose.SEARCH}}
    began = record.began_at()
    mine = [b for b in blocks if began is None or b.issued_at >= began]
    later = next((b.race for b in mine if b.trial_number not in searched), None)
    place = next((i for i, b in enumerate(blocks) if b.race == later), None)
    if place is None:
        return record
    at = blocks[place].issued_at
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
