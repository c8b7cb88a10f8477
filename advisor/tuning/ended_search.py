"""The record as it stood when the search ended: what is measured later changes nothing of what the search found."""

from datetime import datetime

from advisor.protocol.trials import Purpose, Session, SessionState
from advisor.tuning.record import Record


def search_as_it_ended(record: Record) -> Record:
    """Return the record as it stood when the first round began; the record itself while none has."""
    blocks = record.history.blocks
    place = next((i for i, block in enumerate(blocks) if block.round is not None), None)
    if place is None:
        return record
    at = blocks[place].issued_at
    kept = {Purpose.BASELINE, Purpose.SEARCH}
    history = record.history.model_copy(
        update={
            "blocks": blocks[:place],
            "trials": tuple(t for t in record.history.trials if t.purpose in kept),
            "sessions": tuple(_as_it_stood(s, at) for s in record.sessions if s.created_at <= at),
        }
    )
    return Record(record.job, history, at, record.quick)


def _as_it_stood(session: Session, at: datetime) -> Session:
    if session.ended_at is None or session.ended_at <= at:
        return session
    return session.model_copy(update={"ended_at": None, "outcome": None, "state": SessionState.RUNNING})
