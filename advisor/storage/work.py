"""A unit of work: one transaction with all repositories."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from sqlalchemy import Connection, insert, text, update

from advisor.protocol.asked.webhooks import Notice
from advisor.storage.bell import JOBS
from advisor.storage.fault_points import FaultPoint
from advisor.storage.repositories.accounts import Agents, Tokens
from advisor.storage.repositories.blocks import Blocks
from advisor.storage.repositories.jobs import Jobs
from advisor.storage.repositories.known_blocks import KnownBlocks
from advisor.storage.repositories.leaders import Leaders
from advisor.storage.repositories.members import Members
from advisor.storage.repositories.records import AdviceShelf, Events, Logs, Telemetry
from advisor.storage.repositories.runs import Runs
from advisor.storage.repositories.sessions import Sessions
from advisor.storage.repositories.trials import Trials
from advisor.storage.repositories.visits import Visits
from advisor.storage.tables import PulseRow
from advisor.storage.whole.census import Counts
from advisor.storage.whole.upkeep import Upkeep

_PULSE = 1
"""The one row of its table."""


class UnitOfWork:
    """One transaction. Application code never commits: the caller that opened it does, at its end."""

    def __init__(
        self, connection: Connection, new_id: Callable[[], str], known_blocks: KnownBlocks, read_only: bool
    ) -> None:
        self.connection, self.is_read_only = connection, read_only
        self.reached: list[FaultPoint] = []
        """What this transaction is about."""
        self.new_id = new_id
        self.jobs = Jobs(connection)
        self.sessions = Sessions(connection)
        self.members = Members(connection)
        self.trials = Trials(connection)
        self.blocks = Blocks(connection, known_blocks, read_only)
        self.agents = Agents(connection)
        self.tokens = Tokens(connection)
        self.visits = Visits(connection)
        self.rung: set[str] = set()
        """What is rung for once this transaction is committed."""
        self.notices: list[Notice] = []
        """What webhooks are told once this transaction is committed."""
        self.events = Events(connection, self.rung)
        self.logs = Logs(connection)
        self.telemetry = Telemetry(connection)
        self.advice = AdviceShelf(connection)
        self.runs = Runs(connection)
        self.upkeep = Upkeep(connection)
        self.counts = Counts(connection)
        self.leaders = Leaders(connection)

    def call_leader(self) -> None:
        """Say that jobs may have to move on: they are looked at once this is committed, and not at the next tick."""
        self.rung.add(JOBS)

    def reach(self, point: FaultPoint) -> None:
        """Say what this transaction does: tests strike before and after its commit."""
        self.reached.append(point)

    def prove_writable(self) -> None:
        """Write something: once this transaction is committed, others could have been as well."""
        beat = update(PulseRow).where(PulseRow.id == _PULSE).values(beats=PulseRow.beats + 1)
        if self.connection.execute(beat).rowcount == 0:
            self.connection.execute(insert(PulseRow).values(id=_PULSE, beats=1))

    def ping(self) -> None:
        """Ask the database for a sign of life."""
        self.connection.execute(text("SELECT 1"))


class Transactions(Protocol):
    """Where transactions come from: a database, or one that refuses a server that leads no longer."""

    def begin(self) -> AbstractContextManager[UnitOfWork]:
        """Run one writing transaction."""
        ...

    def read(self) -> AbstractContextManager[UnitOfWork]:
        """Run one transaction that only reads."""
        ...
