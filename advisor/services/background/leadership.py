"""Which of the servers on one database leads: it alone gives sessions up and plans waiting jobs.

The leader counts a renewal up at every tick; the others watch it as the reaper watches leases: nothing is dated, and
time in which a server did not run, or did not reach the database, is nobody's silence. Who leads is fenced besides:
whatever a leader writes proves in its own transaction that its epoch is still the seat's.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from advisor.errors import LostRace
from advisor.services.background.awake_clock import AwakeClock
from advisor.storage import Database, UnitOfWork
from advisor.storage.repositories.leaders import Seat

_log = logging.getLogger(__name__)


class NotLeading(LostRace):
    """Another server leads: nothing of the transaction is written."""


class Term:
    """The time for which this server leads. What it remembers of its work goes with it."""

    def __init__(self, database: Database, epoch: int, end: Callable[["Term"], None]) -> None:
        """`end` is called when it turns out that another server leads."""
        self.epoch = epoch
        self._database, self._end = database, end

    @contextmanager
    def begin(self) -> Iterator[UnitOfWork]:
        """Run one writing transaction as the leader: until it ends nobody else begins to lead. Raises NotLeading."""
        with self._database.begin() as work:
            if not work.leaders.hold(self.epoch):
                self._end(self)
                raise NotLeading("Another server leads.")
            yield work

    def read(self) -> AbstractContextManager[UnitOfWork]:
        """Run one transaction that only reads."""
        return self._database.read()


class Leadership:
    """Whether this server leads, and what it does then; share it between threads."""

    def __init__(
        self,
        database: Database,
        name: str,
        clock: AwakeClock,
        lease_s: float,
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        """`lease_s`: a leader that renews nothing for longer is followed by another one. 0 where no other server can
        be there (a SQLite file has one): this one leads from its first look on, and renews nothing.

        `tell` is called when this server begins to lead.
        """
        self.name = name
        self._database, self._clock, self._lease_s, self._tell = database, clock, lease_s, tell
        self._lock = threading.Lock()
        self._term: Term | None = None
        self._seat: Seat | None = None
        self._since_s = 0.0

    @property
    def term(self) -> Term | None:
        """The present term of this server; None while it does not lead."""
        return self._term

    @property
    def leader(self) -> str:
        """The name of the server that leads, as far as this one knows; "" while none does."""
        return self.name if self._term else self._seat.holder if self._seat else ""

    def look(self) -> None:
        """Renew what this server has; or watch who leads, and follow a leader that has left or is silent."""
        if (term := self._term) is not None:
            if not self._lease_s:
                return
            with self._database.begin() as work:
                renewed = work.leaders.renew(term.epoch)
            if renewed:
                return
            self._end(term)
        with self._database.read() as work:
            seat = work.leaders.seat()
        awake_s = self._clock.advance()
        if seat != self._seat:
            self._seat, self._since_s = seat, awake_s
        if not seat.holder or not self._lease_s or awake_s - self._since_s > self._lease_s:
            self._follow(seat)

    def leave(self) -> None:
        """Lead no longer; another server follows at its next look."""
        if (term := self._term) is None:
            return
        self._term = None
        if self._lease_s:
            with self._database.begin() as work:
                work.leaders.leave(term.epoch)

    @contextmanager
    def begin(self) -> Iterator[UnitOfWork]:
        """Run one writing transaction as the leader, for work that remembers nothing. Raises NotLeading."""
        with self._present().begin() as work:
            yield work

    def read(self) -> AbstractContextManager[UnitOfWork]:
        """Run one transaction that only reads. Raises NotLeading."""
        return self._present().read()

    def duty(self, make: Callable[[Term], Callable[[], int]]) -> Callable[[], int]:
        """Return what does, while this server leads, what `make` returns; `make` is asked once for every term."""
        made: list[tuple[Term, Callable[[], int]]] = []

        def do() -> int:
            if (term := self._term) is None:
                return 0
            if not made or made[0][0] is not term:
                made[:] = [(term, make(term))]
            with suppress(NotLeading):
                return made[0][1]()
            return 0

        return do

    def _present(self) -> Term:
        if (term := self._term) is None:
            raise NotLeading("Another server leads.")
        return term

    def _follow(self, seat: Seat) -> None:
        epoch: int | None = None
        with suppress(LostRace), self._database.begin() as work:
            epoch = work.leaders.take(seat, self.name)
        if epoch is None:
            return
        with self._lock:
            self._term = Term(self._database, epoch, self._end)
        if self._lease_s:
            _log.info("This server (%s) leads from now on, with epoch %s.", self.name, epoch)
        self._tell()

    def _end(self, term: Term) -> None:
        with self._lock:
            if self._term is not term:
                return
            self._term = None
        _log.warning(
            "This server (%s) leads no longer: it was silent for too long, and another one followed epoch %s. What it "
            "still wanted to write as the leader was refused; it serves requests as before.",
            self.name,
            term.epoch,
        )
