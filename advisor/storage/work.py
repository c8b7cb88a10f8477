"""A unit of work: one transaction with all repositories."""

from collections.abc import Callable

from sqlalchemy import Connection, text

from advisor.storage.fault_points import FaultPoint
from advisor.storage.notifier import JOBS
from advisor.storage.repositories.accounts import Agents, Tokens
from advisor.storage.repositories.blocks import Blocks
from advisor.storage.repositories.jobs import Jobs
from advisor.storage.repositories.known_blocks import KnownBlocks
from advisor.storage.repositories.members import Members
from advisor.storage.repositories.records import Advices, Events, Logs, Runs, Telemetry
from advisor.storage.repositories.sessions import Sessions
from advisor.storage.repositories.trials import Trials
from advisor.storage.repositories.visits import Visits
from advisor.storage.whole.census import Counts
from advisor.storage.whole.upkeep import Upkeep


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
        self.left: set[str] = set()
        """Sessions whose members may not go on as they did, once this transaction is committed."""
        self.sessions = Sessions(connection, self.left)
        self.members = Members(connection, self.left)
        self.trials = Trials(connection)
        self.blocks = Blocks(connection, known_blocks, read_only)
        self.agents = Agents(connection)
        self.tokens = Tokens(connection)
        self.visits = Visits(connection)
        self.rung: set[str] = set()
        """What is rung for once this transaction is committed."""
        self.events = Events(connection, self.rung)
        self.logs = Logs(connection)
        self.telemetry = Telemetry(connection)
        self.advice = Advices(connection)
        self.runs = Runs(connection)
        self.upkeep = Upkeep(connection)
        self.counts = Counts(connection)

    def call_scheduler(self) -> None:
        """Say that jobs may have to move on: they are looked at once this is committed, and not at the next tick."""
        self.rung.add(JOBS)

    def reach(self, point: FaultPoint) -> None:
        """Say what this transaction does: tests strike before and after its commit."""
        self.reached.append(point)

    def ping(self) -> None:
        """Ask the database for a sign of life."""
        self.connection.execute(text("SELECT 1"))
