"""Sending notices from the server's event loop: a few tries each, and what no receiver took is logged and told."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from starlette.concurrency import run_in_threadpool

from advisor.protocol.asked.jobs import Notice
from advisor.services.webhooks.posting import NotTaken, Refused, WebhookSender

PAUSES_S = (1.0, 5.0, 15.0, 60.0)
"""Before each further try."""
MOST_AT_ONCE = 200
"""Further notices are given up: a receiver that hangs must not fill the server's memory."""
_LAST_S = 2.0
"""A server that stops gives what is being posted this long."""

_log = logging.getLogger(__name__)


class Sender:
    """Posts every notice that it is given, all side by side, for as long as the server lives."""

    def __init__(
        self,
        webhook_sender: WebhookSender,
        note: Callable[[str], None],
        tell: Callable[[str, str], None],
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        """`note` counts `delivered` and `given_up`; `tell` adds a sentence to the story of a job."""
        self._webhook_sender, self._note, self._tell, self._pauses_s = webhook_sender, note, tell, pauses_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Post in the running event loop from now on."""
        self._loop = asyncio.get_running_loop()

    def send(self, notice: Notice) -> None:
        """Post a notice soon, whatever thread asks for it."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin, notice)

    async def close(self, patience_s: float = _LAST_S) -> None:
        """Wait a moment for what is being posted, and give the rest up."""
        # What threads asked for last begins first.
        await asyncio.sleep(0)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience_s)
        late = list(self._tasks)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        self._loop = None

    def _begin(self, notice: Notice) -> None:
        sending = self._send if len(self._tasks) < MOST_AT_ONCE else self._refuse
        task = asyncio.create_task(sending(notice))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, notice: Notice) -> None:
        try:
            for pause_s in (*self._pauses_s, None):
                try:
                    await self._webhook_sender.post(notice)
                except NotTaken:
                    if pause_s is None:
                        raise
                    await asyncio.sleep(pause_s)
                else:
                    self._note("delivered")
                    return
        except (NotTaken, Refused) as error:
            await self._give_up(notice, str(error))
        except asyncio.CancelledError:
            await self._give_up(notice, "the server stopped before a receiver took the notice.")

    async def _refuse(self, notice: Notice) -> None:
        await self._give_up(notice, f"{MOST_AT_ONCE} notices waited already.")

    async def _give_up(self, notice: Notice, why: str) -> None:
        self._note("given_up")
        sentence = f"A webhook was not told: {why}"
        _log.warning("Job %s: %s", notice.job_id, sentence)
        await run_in_threadpool(self._tell, notice.job_id, sentence)
