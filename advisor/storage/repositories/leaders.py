"""Which server leads: one row that names it, with an epoch that fences whatever an earlier leader still writes."""

from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from advisor.storage.tables import LeaderRow


@dataclass(frozen=True)
class Seat:
    """The leader's seat as it was seen: as long as any of it changes, its holder lives."""

    epoch: int = 0
    """Counts the leaders up; 0 before the first one."""
    holder: str = ""
    """The server that leads; "" when it left by itself."""
    renewals: int = 0


class Leaders:
    """The seat in one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def seat(self) -> Seat:
        """Return the seat as it is now."""
        row = self._connection.execute(select(LeaderRow)).one_or_none()
        return Seat(row.epoch, row.holder, row.renewals) if row else Seat()

    def take(self, seen: Seat, holder: str) -> int | None:
        """Let `holder` lead from now on; return its epoch. None when the seat is not as it was seen any more.

        A unique index refuses the second of two servers that are the first on a database.
        """
        if seen == Seat():
            self._connection.execute(insert(LeaderRow).values(epoch=1, holder=holder, renewals=0))
            return 1
        query = update(LeaderRow).where(
            LeaderRow.epoch == seen.epoch,
            LeaderRow.holder == seen.holder,
            LeaderRow.renewals == seen.renewals,
        )
        taken = self._connection.execute(query.values(epoch=seen.epoch + 1, holder=holder, renewals=0))
        return seen.epoch + 1 if taken.rowcount == 1 else None

    def renew(self, epoch: int) -> bool:
        """Show that the leader of this epoch lives; refused when another one leads."""
        query = update(LeaderRow).where(LeaderRow.epoch == epoch).values(renewals=LeaderRow.renewals + 1)
        return self._connection.execute(query).rowcount == 1

    def hold(self, epoch: int) -> bool:
        """Keep anybody else from taking the seat until this transaction ends; refused when another one leads."""
        # Renewing changes no key, so that it waits for none of these; taking does, and waits for all of them.
        query = select(LeaderRow.epoch).where(LeaderRow.epoch == epoch)
        return self._connection.execute(query.with_for_update(read=True, key_share=True)).first() is not None

    def leave(self, epoch: int) -> None:
        """Let others take the seat at once."""
        self._connection.execute(update(LeaderRow).where(LeaderRow.epoch == epoch).values(holder=""))
