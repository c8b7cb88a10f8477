"""Follows jobs for all who watch them: one look for each job and for each token, however many streams there are.

For the tasks of one event loop. A look happens when something happened to the job, or when the last one is old: the
first stream that finds it due does it, in a thread, and all others take what it found from memory.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from starlette.concurrency import run_in_threadpool

from advisor.errors import JobNotFound
from advisor.protocol.views import JobEvent
from advisor.services.jobs import get_job
from advisor.services.tokens import Principal, still_counts
from advisor.storage import Database
from advisor.storage.notifier import story_of

PAGE = 500
"""Events that are read, and sent, at once."""
_MOST_KEPT = 2000
"""Events of a job that stay in memory while it is followed; who is further behind reads by itself."""
_LEAST_REST_S = 0.1
_REST_TICKS = 5
"""Ticks between two looks at a job of which every change is heard."""


@dataclass(frozen=True)
class Told:
    """An event as every stream sends it."""

    seq: int
    line: bytes


@dataclass
class _Story:
    """What is known of one job that is followed: the events above `start`, in order."""

    start: int
    events: list[Told] = field(default_factory=list)
    has_ended: bool = False
    version: int | None = None
    """Of the job, when it was looked at last."""
    looked_at_s: float = -1e9
    is_due: bool = True
    followers: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    hearing: ExitStack = field(default_factory=ExitStack)

    @property
    def newest(self) -> int:
        return self.events[-1].seq if self.events else self.start

    def ring(self) -> None:
        """Wake everybody who waits for this job."""
        self.is_due = True
        rung, self.changed = self.changed, asyncio.Event()
        rung.set()

    def take(self, events: list[Told]) -> None:
        """Add newer events; the oldest go when there are too many."""
        self.events += events
        if len(self.events) > _MOST_KEPT:
            self.start = self.events[-_MOST_KEPT - 1].seq
            self.events = self.events[-_MOST_KEPT:]

    def list_after(self, after: int) -> list[Told]:
        first = bisect_right(self.events, after, key=lambda told: told.seq)
        return self.events[first : first + PAGE]


def _ring(loop: asyncio.AbstractEventLoop, story: _Story) -> None:
    loop.call_soon_threadsafe(story.ring)


class Follower:
    """One stream's place in a job's story."""

    def __init__(
        self, stories: "Stories", job_id: str, story: _Story, principal: Principal, after: int
    ) -> None:
        self._stories, self._job_id, self._story = stories, job_id, story
        self._principal = principal
        self._changed = story.changed
        self.after = after
        """Number of the last event that was taken."""

    async def counts(self) -> bool:
        """Whether the token that opened the stream would open it now."""
        return await self._stories.still_counts(self._principal)

    async def take(self) -> list[Told]:
        """Return the next events, at most PAGE; [] when there are none now. Raises JobNotFound, Unavailable."""
        story = self._story
        self._changed = story.changed
        await self._stories.look(self._job_id, story)
        if self.after < story.start:
            told = await self._stories.read_earlier(self._job_id, story, self.after)
        else:
            told = story.list_after(self.after)
        if told:
            self.after = told[-1].seq
        return told

    @property
    def is_over(self) -> bool:
        """Whether the job has ended and everything was taken."""
        return self._story.has_ended and self.after >= self._story.newest

    async def wait(self, timeout_s: float) -> None:
        """Wait until something happened since the last `take`, or the time is over."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout_s)
            # Many things may happen at once, and all streams wake for each look.
            rest_s = self._story.looked_at_s + _LEAST_REST_S - asyncio.get_running_loop().time()
            await asyncio.sleep(min(max(0.0, rest_s), timeout_s))


class Stories:
    """The jobs that are followed."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], datetime],
        write: Callable[[JobEvent], bytes],
        *,
        tick_s: float,
    ) -> None:
        """`write` returns an event as streams send it."""
        self._database, self._clock, self._write = database, clock, write
        self._tick_s = tick_s
        self._stories: dict[str, _Story] = {}
        self._asking = asyncio.Lock()
        self._tokens: dict[str, tuple[object | None, bool]] = {}
        """By id: the stamp that tokens had at the look, and whether this one counted."""

    @property
    def rest_s(self) -> float:
        """How long a stream waits at most before it asks again."""
        return self._tick_s

    @contextmanager
    def follow(self, job_id: str, principal: Principal, after: int) -> Iterator[Follower]:
        """Take a place in a job's story, after the event of that number."""
        loop = asyncio.get_running_loop()
        story = self._stories.get(job_id)
        if story is None:
            story = self._stories[job_id] = _Story(after)
            story.hearing.enter_context(
                self._database.notifier.waiting(story_of(job_id), partial(_ring, loop, story))
            )
        story.followers += 1
        try:
            yield Follower(self, job_id, story, principal, after)
        finally:
            story.followers -= 1
            if not story.followers:
                story.hearing.close()
                del self._stories[job_id]

    async def look(self, job_id: str, story: _Story) -> None:
        """Look at a job where that is due."""
        loop = asyncio.get_running_loop()
        rest_s = _REST_TICKS * self._tick_s
        async with story.turn:
            if not story.is_due and loop.time() < story.looked_at_s + rest_s:
                return
            story.is_due, story.looked_at_s = False, loop.time()
            try:
                news = await run_in_threadpool(self._read_news, job_id, story.version, story.newest)
            except BaseException:
                story.is_due = True
                raise
            if news is None:
                return
            story.version, story.has_ended, newest, events = news
            if story.start > newest:  # a stream named a number that no event has yet
                story.start = newest
            story.take(events)
            if len(events) == PAGE:
                story.is_due, story.version = True, None

    async def read_earlier(self, job_id: str, story: _Story, after: int) -> list[Told]:
        """Return a page of events from before those in memory, and keep what joins them where it is not too much."""
        async with story.turn:
            missing = story.start - after
            if missing + len(story.events) > _MOST_KEPT:
                return await run_in_threadpool(self._read_events, job_id, after, PAGE)
            if missing > 0:  # else another stream was there meanwhile
                older = await run_in_threadpool(self._read_events, job_id, after, missing)
                story.events = [one for one in older if one.seq <= story.start] + story.events
                story.start = after
            return story.list_after(after)

    async def still_counts(self, principal: Principal) -> bool:
        """Whether a token would open a stream now: looked up after tokens changed, else from memory."""
        now, stamp = self._clock(), self._database.tokens_stamp
        if principal.expires_at is not None and principal.expires_at <= now:
            return False
        async with self._asking:
            seen_stamp, counted = self._tokens.get(principal.token_id, (None, False))
            if stamp is not None and seen_stamp is stamp:
                return counted
            counts = await run_in_threadpool(self._ask_for, principal, now)
            if len(self._tokens) > _MOST_KEPT:
                self._tokens.clear()
            self._tokens[principal.token_id] = stamp, counts
            return counts

    def _ask_for(self, principal: Principal, now: datetime) -> bool:
        with self._database.read() as work:
            return still_counts(work, principal, now)

    def _read_news(
        self, job_id: str, known: int | None, after: int
    ) -> tuple[int, bool, int, list[Told]] | None:
        with self._database.read() as work:
            # The version first, then the state: what comes after this look is found by the next one.
            version = work.jobs.version(job_id)
            if version is None:
                raise JobNotFound(f"There is no job {job_id}.")
            if version == known:
                return None
            has_ended = get_job(work, job_id).state.is_final
            newest = work.events.newest(job_id) or 0
            return version, has_ended, newest, self._tell(work.events.after(job_id, min(after, newest), PAGE))

    def _read_events(self, job_id: str, after: int, limit: int) -> list[Told]:
        with self._database.read() as work:
            return self._tell(work.events.after(job_id, after, limit))

    def _tell(self, events: list[JobEvent]) -> list[Told]:
        return [Told(event.seq, self._write(event)) for event in events]
