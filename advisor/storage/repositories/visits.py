"""Visits: who is signed in to the dashboard, by the hash of their cookie."""

from datetime import datetime

from sqlalchemy import Connection, ForeignKey, delete, insert, select, update
from sqlalchemy.orm import Mapped, mapped_column

from advisor.storage.tables import Base


class VisitRow(Base):
    """One signed-in browser; it goes with its token."""

    __tablename__ = "visits"

    key_sha256: Mapped[str] = mapped_column(primary_key=True)
    token_id: Mapped[str] = mapped_column(ForeignKey("tokens.id", ondelete="CASCADE"), index=True)
    seen_at: Mapped[datetime]


class Visits:
    """The visits of one transaction. Cookies never get here, only their hashes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, key_sha256: str, token_id: str, now: datetime) -> None:
        """Store a new visit."""
        values = {"key_sha256": key_sha256, "token_id": token_id, "seen_at": now}
        self._connection.execute(insert(VisitRow).values(values))

    def find(self, key_sha256: str) -> tuple[str, datetime] | None:
        """Return the id of a visit's token, and when the visit was last marked as seen."""
        query = select(VisitRow.token_id, VisitRow.seen_at).where(VisitRow.key_sha256 == key_sha256)
        row = self._connection.execute(query).one_or_none()
        return (row.token_id, row.seen_at) if row else None

    def mark(self, key_sha256: str, now: datetime) -> None:
        """Note that the browser was there."""
        query = update(VisitRow).where(VisitRow.key_sha256 == key_sha256)
        self._connection.execute(query.values(seen_at=now))

    def remove(self, key_sha256: str) -> None:
        """End a visit, if there is one."""
        self._connection.execute(delete(VisitRow).where(VisitRow.key_sha256 == key_sha256))

    def make_room(self, token_id: str, most: int, idle_since: datetime) -> None:
        """Take away the visits that were last used before then, and of this token all but the latest `most`."""
        latest = select(VisitRow.key_sha256).where(VisitRow.token_id == token_id)
        kept = latest.order_by(VisitRow.seen_at.desc()).limit(most)
        crowd = (VisitRow.token_id == token_id) & VisitRow.key_sha256.not_in(kept)
        self._connection.execute(delete(VisitRow).where((VisitRow.seen_at < idle_since) | crowd))
