"""Where the pages get their answers: each look-up and each change by a service, in a transaction of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Concatenate, ParamSpec, TypeVar

from advisor.errors import AdviceNotReady
from advisor.protocol.answers.advice import Advice
from advisor.services.answers.advice import get_advice
from advisor.services.timers import Timers
from advisor.storage import Database, UnitOfWork
from advisor.tuning.asked import Tuning

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Source:
    """The database, and what services need besides it."""

    database: Database
    clock: Callable[[], datetime]
    """The present time in UTC."""
    tuning: Tuning
    """Says what a job would do."""
    timers: Timers

    def read(self, ask: Callable[Concatenate[UnitOfWork, _P], _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Return what a service that only reads answers."""
        with self.database.read() as work:
            return ask(work, *args, **kwargs)

    def change(
        self, do: Callable[Concatenate[UnitOfWork, _P], _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Let a service change something, and return what it answers."""
        with self.database.begin() as work:
            return do(work, *args, **kwargs)

    def find_advice(self, job_id: str) -> Advice | None:
        """Return the job's advice; None while there is none."""
        try:
            return self.read(get_advice, job_id)
        except AdviceNotReady:
            return None
