"""The courier: posts the notices of the outbox, each at least once, until they are taken or a day old."""

import asyncio
import logging
import random
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

from advisor.errors import LostRace
from advisor.protocol.asked.webhooks import hide_path
from advisor.protocol.views import EventKind
from advisor.services.webhooks.posting import POST_S, Fate, Posted, Poster
from advisor.storage import Transactions, UnitOfWork
from advisor.storage.fault_points import FaultPoint
from advisor.storage.repositories.outbox import Notice

LONGEST_WAIT = timedelta(hours=24)
"""A notice that nobody has taken for this long, and in LEAST_TRIES, is given up: the clock may have been set."""
LEAST_TRIES = 12
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 3600.0
"""Between two tries: a random share of the first, twice it, four times it, … up to the longest."""
_AT_ONCE = 20
_HOST_S = 2 * POST_S
"""Time of one round that a host gets: others wait for its end."""
_HELD = timedelta(seconds=120)
"""Nobody else takes up what was taken up for this long: well beyond a round."""
_STOP_CHECK_S, _LAST_S = 0.2, 2.0
"""A server that stops gives what is being posted this long."""

_log = logging.getLogger(__name__)


class Courier:
    """Posts what is due. It remembers nothing: another server takes over any time."""

    def __init__(
        self,
        database: Transactions,
        poster: Poster,
        clock: Callable[[], datetime],
        stopping: threading.Event,
        note: Callable[[str], None] = lambda _: None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`note` is told what became of every try; `draw` returns random numbers from 0 to 1.

        Once `stopping` is set a round is short: what it could not post is posted by whoever serves next.
        """
        self._database, self._poster, self._clock = database, poster, clock
        self._stopping, self._note, self._draw = stopping, note, draw

    def run(self) -> None:
        """Post what is due, unless another server leads or takes the same notices up at this moment."""
        with suppress(LostRace):
            while self.deliver_due() == _AT_ONCE and not self._stopping.is_set():
                pass

    def deliver_due(self) -> int:
        """Post once what is due, hosts side by side; return how many notices were taken up.

        Raises LostRace where another server took them up at this moment, or leads.
        """
        now = self._clock()
        with self._database.read() as work:
            if not work.outbox.has_due(now):
                return 0
        with self._database.begin() as work:
            notices = work.outbox.take(now, now + _HELD, _AT_ONCE)
            work.reach(FaultPoint.NOTICES_TAKEN)
        tried = asyncio.run(self._post_all(notices))
        for notice, posted in tried:
            self._note(posted.fate)
            with self._database.begin() as work:
                self._settle(work, notice, posted)
                work.reach(FaultPoint.NOTICE_SETTLED)
        return len(notices)

    async def _post_all(self, notices: list[Notice]) -> list[tuple[Notice, Posted]]:
        by_host: defaultdict[str, list[Notice]] = defaultdict(list)
        for notice in notices:
            by_host[hide_path(notice.url)].append(notice)
        tried: list[tuple[Notice, Posted]] = []
        pending = {asyncio.create_task(self._post_to_host(waiting, tried)) for waiting in by_host.values()}
        left_s = _LAST_S
        while pending and left_s > 0:
            done, pending = await asyncio.wait(pending, timeout=_STOP_CHECK_S)
            left_s -= _STOP_CHECK_S if self._stopping.is_set() else 0.0
            for task in done:
                task.result()
        for task in pending:
            task.cancel()
        return tried

    async def _post_to_host(self, notices: list[Notice], tried: list[tuple[Notice, Posted]]) -> None:
        """Post in order until the host fails or has had its time; the rest shares the fate of the last one."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _HOST_S
        posted = Posted(Fate.DELIVERED)
        for notice in notices:
            if posted.fate is not Fate.POSTPONED and loop.time() < until:
                posted = await self._poster.post(notice)
                tried.append((notice, posted))
            else:
                tried.append((notice, Posted(Fate.POSTPONED, posted.sentence or "Its host is slow.")))

    def _settle(self, work: UnitOfWork, notice: Notice, posted: Posted) -> None:
        now = self._clock()
        if posted.fate is Fate.DELIVERED:
            work.outbox.remove(notice)
        elif posted.fate is Fate.POSTPONED and not _is_spent(notice, now):
            longest_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(notice.tries - 1, 20))
            work.outbox.postpone(notice, now + timedelta(seconds=self._draw() * longest_s))
        elif work.outbox.remove(notice):
            sentence = f"A webhook was not told: {posted.sentence}"
            _log.warning("Job %s: %s", notice.job_id, sentence)
            if work.jobs.exists(notice.job_id):
                work.events.append(notice.job_id, EventKind.JOB, sentence, now)


def _is_spent(notice: Notice, now: datetime) -> bool:
    return now - notice.created_at >= LONGEST_WAIT and notice.tries >= LEAST_TRIES
