"""Notices that wait to be posted to a webhook: written with what they tell of, gone once they were taken."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, insert, or_, select, update

from advisor.storage.bell import NOTICES
from advisor.storage.tables import OutboxRow

_FARTHEST = timedelta(hours=2)
"""No notice is put off for as long: where one seems to be, the clock was set back since."""


@dataclass(frozen=True)
class Notice:
    """One event for one address."""

    job_id: str
    event_id: str
    """The same for every address that is told of the event, and for every try."""
    url: str
    body: str
    """JSON, as it is signed and posted."""
    created_at: datetime
    serial: int = 0
    """Its place in the outbox; 0 before it is there."""
    tries: int = 0
    """How often it was taken up to be posted."""


class Outbox:
    """The waiting notices of one transaction."""

    def __init__(self, connection: Connection, rung: set[str]) -> None:
        """`rung` is what is rung for after the commit."""
        self._connection, self._rung = connection, rung

    def add(self, notice: Notice, most: int) -> None:
        """Store a notice that is due at once; of its job, keep the latest `most` only."""
        self._connection.execute(
            insert(OutboxRow).values(
                job_id=notice.job_id,
                event_id=notice.event_id,
                url=notice.url,
                body=notice.body,
                created_at=notice.created_at,
                due_at=notice.created_at,
                tries=0,
            )
        )
        of_job = OutboxRow.job_id == notice.job_id
        kept = select(OutboxRow.serial).where(of_job).order_by(OutboxRow.serial.desc()).limit(most)
        self._connection.execute(delete(OutboxRow).where(of_job, OutboxRow.serial.not_in(kept)))
        self._rung.add(NOTICES)

    def has_due(self, now: datetime) -> bool:
        """Whether some notice is to be posted now."""
        query = select(OutboxRow.serial).where(_is_due(now)).limit(1)
        return self._connection.execute(query).first() is not None

    def take(self, now: datetime, until: datetime, limit: int) -> list[Notice]:
        """Return notices that are due, the oldest first; nobody else takes them before `until`."""
        due = select(OutboxRow).where(_is_due(now)).order_by(OutboxRow.serial).limit(limit)
        found = [
            Notice(row.job_id, row.event_id, row.url, row.body, row.created_at, row.serial, row.tries)
            for row in self._connection.execute(due).all()
        ]
        return [
            replace(notice, tries=notice.tries + 1)
            for notice in found
            if self._set(notice, due_at=until, tries=notice.tries + 1)
        ]

    def postpone(self, notice: Notice, until: datetime) -> None:
        """Let a notice be taken again at `until`, unless somebody else has taken it meanwhile."""
        self._set(notice, due_at=until)

    def remove(self, notice: Notice) -> bool:
        """Forget a notice; return whether it was still there."""
        # Its place alone does not tell: SQLite gives the last one away again.
        query = delete(OutboxRow).where(
            OutboxRow.serial == notice.serial, OutboxRow.event_id == notice.event_id
        )
        return self._connection.execute(query).rowcount == 1

    def _set(self, notice: Notice, **values: Any) -> bool:
        query = update(OutboxRow).where(
            OutboxRow.serial == notice.serial,
            OutboxRow.event_id == notice.event_id,
            OutboxRow.tries == notice.tries,
        )
        return self._connection.execute(query.values(values)).rowcount == 1


def _is_due(now: datetime) -> ColumnElement[bool]:
    return or_(OutboxRow.due_at <= now, OutboxRow.due_at > now + _FARTHEST)
