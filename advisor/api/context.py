"""What every route needs: the database, the tuning functions, the timers, the clock."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from advisor.services.tuning import Timers, Tuning
from advisor.settings import Settings
from advisor.storage import Database


@dataclass(frozen=True)
class Context:
    """Made once by `create_app` and handed to every route."""

    settings: Settings
    database: Database
    tuning: Tuning
    timers: Timers
    clock: Callable[[], datetime]
    """The present time in UTC."""
    wake: threading.Event = field(default_factory=threading.Event)
    """Set when jobs may have to move on: the scheduler looks at once instead of at its next tick."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set when the server stops: requests that are held open are answered."""


def get_context(connection: HTTPConnection) -> Context:
    """Return the application's context."""
    context: Context = connection.app.state.context
    return context


Here = Annotated[Context, Depends(get_context)]
