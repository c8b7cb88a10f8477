"""A unit of work: one transaction with all repositories."""

from collections.abc import Callable

from sqlalchemy import Connection, text

from advisor.storage.accounts import Agents, Tokens
from advisor.storage.blocks import Blocks
from advisor.storage.jobs import Jobs
from advisor.storage.members import Members
from advisor.storage.records import AdviceShelf, Events, Logs, Telemetry
from advisor.storage.runs import Runs
from advisor.storage.sessions import Sessions
from advisor.storage.trials import Trials


class UnitOfWork:
    """One transaction. Application code never commits: whoever opened it does, at its end."""

    def __init__(self, connection: Connection, new_id: Callable[[], str]) -> None:
        self.connection = connection
        self.new_id = new_id
        self.jobs = Jobs(connection)
        self.sessions = Sessions(connection)
        self.members = Members(connection)
        self.trials = Trials(connection)
        self.blocks = Blocks(connection)
        self.agents = Agents(connection)
        self.tokens = Tokens(connection)
        self.events = Events(connection)
        self.logs = Logs(connection)
        self.telemetry = Telemetry(connection)
        self.advice = AdviceShelf(connection)
        self.runs = Runs(connection)

    def ping(self) -> None:
        """Ask the database for a sign of life."""
        self.connection.execute(text("SELECT 1"))
