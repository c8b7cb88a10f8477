"""Transactions of an event loop's tasks: queued, run by the loop itself, and committed together on SQLite.

A thread for each would cost more than most of them, and two threads that calculate take the interpreter from each
other at every statement. What may wait is not the loop's: a thread waits for the turn to write, and for the disk.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection

from advisor.storage.sqlite.group_commit import GroupCommit
from advisor.storage.work import UnitOfWork

Result = TypeVar("Result")


class QueuedWrite:
    """One transaction, and who waits for what it returns."""

    def __init__(self, write: Callable[[UnitOfWork], Any], future: asyncio.Future[Any]) -> None:
        self._write, self.future = write, future
        self._context = copy_context()
        """Of the task that asks: its log lines say what they are about."""
        self.since_s = time.perf_counter()
        self.work: UnitOfWork | None = None
        self.result: Any = None
        """Both while it is run, before its group is committed."""

    def run(self, work: UnitOfWork) -> None:
        """Do what is to be committed."""
        self.work = work
        self.result = self._context.run(self._write, work)


class WriteQueue:
    """Runs transactions in the order in which they come, for the tasks of one event loop."""

    def __init__(
        self,
        writer: GroupCommit,
        run: Callable[[QueuedWrite, Connection], None],
        settle: Callable[[list[QueuedWrite], list[BaseException | None]], None],
    ) -> None:
        """`run` does what one asks for; `settle` is told what each raised once they are committed, and answers."""
        self._writer, self._run, self._settle = writer, run, settle
        self._waiting: deque[QueuedWrite] = deque()
        self._thread = ThreadPoolExecutor(1, "writes")
        self._at_work: asyncio.Task[None] | None = None

    async def add(self, write: Callable[[UnitOfWork], Result]) -> Result:
        """Run one; raises what it raised."""
        loop = asyncio.get_running_loop()
        one = QueuedWrite(write, loop.create_future())
        self._waiting.append(one)
        if self._at_work is None or self._at_work.done():
            self._at_work = loop.create_task(self._work_off())
        result: Result = await one.future
        return result

    @property
    def length(self) -> int:
        """How many wait to be begun."""
        return len(self._waiting)

    def close(self) -> None:
        """Let the thread go."""
        self._thread.shutdown(wait=False)

    async def _work_off(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            taken: list[QueuedWrite] = []
            errors: list[BaseException | None]
            try:
                turn = await loop.run_in_executor(self._thread, self._writer.open_turn)
                try:
                    while self._waiting and turn.has_time:
                        taken.append(self._waiting.popleft())
                        turn.run(partial(self._run, taken[-1]))
                finally:
                    errors = await loop.run_in_executor(self._thread, turn.close)
            except Exception as error:
                # Whatever it is, nobody may wait for ever. Where none could begin, those that wait are told as well.
                taken = taken or [self._waiting.popleft() for _ in range(len(self._waiting))]
                errors = [error for _ in taken]
            self._settle(taken, errors)
