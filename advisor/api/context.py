"""What every route needs: the database, the tuning functions, the timers, the clock."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from anyio import CapacityLimiter
from fastapi import Depends, Header
from starlette.requests import HTTPConnection

from advisor.services.background.lobby import Lobby
from advisor.services.measuring.leases import Leases
from advisor.services.metrics import Metrics
from advisor.services.planning.planner_queue import PlannerQueue
from advisor.services.timers import Timers
from advisor.services.tokens import KnownTokens
from advisor.settings import Settings
from advisor.storage import Database
from advisor.tuning.asked import Tuning

_MOST_WAITING = 500
"""Sessions that may wait for a suggestion at one time."""


@dataclass(frozen=True)
class Context:
    """Made once by `create_app` and handed to every route."""

    settings: Settings
    database: Database
    tuning: Tuning
    timers: Timers
    clock: Callable[[], datetime]
    """The present time in UTC."""
    lobby: Lobby
    """Where agents wait that ask for work."""
    planner_queue: PlannerQueue
    """What the planner has thought of, and is thinking about."""
    known_tokens: KnownTokens
    """Whose tokens counted a moment ago."""
    leases: Leases
    """Who was heard of from a session."""
    writers: CapacityLimiter
    """Threads that keep reports. SQLite has one writer at a time: threads that wait for their turn would take the
    interpreter from the one that has it, each time that it asks the database."""
    metrics: Metrics = field(default_factory=Metrics)
    """What is counted while the server runs."""
    waiting_room: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(_MOST_WAITING))
    """Threads of those who wait for the planner: they keep no other request waiting."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set when the server stops: requests that are held open are answered."""


async def get_context(connection: HTTPConnection) -> Context:
    """Return the application's context."""
    context: Context = connection.app.state.context
    return context


Here = Annotated[Context, Depends(get_context)]

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        description="Repeating a request with the same key does once what it asks for, and gives the same job.",
    ),
]
