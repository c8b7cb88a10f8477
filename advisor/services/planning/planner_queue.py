"""The planner's queue: it decides ahead, and whatever needs a decision takes it from here.

A decision is kept with the version of the job it is about and counts for that version only, so that what is taken is
always what the planner would say now. Nothing here has to be kept: a server that starts thinks anew, to the same end.
"""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, wait

from advisor.errors import JobNotFound, Unavailable, UnreadableRecord
from advisor.services.planning.decided import VersionedDecision

_log = logging.getLogger(__name__)
_MOST = 256
"""Decisions that are kept: no more jobs than that wait for a decision at one time."""
_MOST_AHEAD = 64
"""Questions that may wait before none is thought about ahead of being asked: its answer would come too late."""
_AT_MOST = 4
_PATIENCE_S = 0.25
"""As often as an agent has waited this long for a decision, another thread begins, up to the most."""


class PlannerQueue:
    """Decisions that are there or being looked for; share it between threads."""

    def __init__(
        self,
        think: Callable[[str], VersionedDecision],
        start: Callable[[Callable[[], None]], None],
        tell: Callable[[], None] = lambda: None,
        at_once: int = 1,
    ) -> None:
        """`think` decides for a job, `start` runs something in a thread.

        `at_once` decisions are looked for at one time: where they are of this process, more than one would only take
        each other's interpreter, and the requests'. `tell` is called when a thread has nothing left to think about,
        and found something that no session waits for.
        """
        self._think, self._start, self._tell = think, start, tell
        self._at_once = at_once
        self._lock = threading.Lock()
        self._orders: deque[tuple[str, Future[VersionedDecision]]] = deque()
        self._at_work = 0
        self._futures: OrderedDict[str, Future[VersionedDecision]] = OrderedDict()

    def order(self, job_id: str) -> Future[VersionedDecision]:
        """Begin to think, unless that is going on."""
        with self._lock:
            future = self._futures.get(job_id)
            if future is not None and not future.done():
                return future
            future = self._keep(job_id, Future())
            self._orders.append((job_id, future))
        self._begin(self._at_once)
        return future

    def think_ahead(self, job_id: str) -> None:
        """Begin to think about what a session will ask next, unless much is waiting to be thought about."""
        if len(self._orders) < _MOST_AHEAD:
            self.order(job_id)

    def find(self, job_id: str, version: int) -> VersionedDecision | None:
        """Return what was thought about this version of a job; where nothing was, begin to think.

        Raises UnreadableRecord for a job whose history cannot be read.
        """
        decided = self._peek(job_id, version)
        if decided is None:
            future = self.order(job_id)
            decided = self._peek(job_id, version)
            if future.done() and isinstance(future.exception(), UnreadableRecord):
                future.result()
        return decided

    def take(self, job_id: str, version: int) -> VersionedDecision:
        """Return what is thought about this version of a job, as soon as it is there: for its session, which waits.

        It is not kept any longer: with a decision goes the whole history that it was about.
        """
        decided = self._peek(job_id, version) or self._wait(job_id)
        if decided.version < version:
            # It was begun before the job changed.
            decided = self._wait(job_id)
        with self._lock:
            kept = self._futures.get(job_id)
            if kept is not None and kept.done():
                del self._futures[job_id]
        return decided

    def renew(self, decided: VersionedDecision) -> None:
        """Keep a decision that holds for a later version of its job as well."""
        future: Future[VersionedDecision] = Future()
        future.set_result(decided)
        with self._lock:
            self._keep(decided.job_id, future)

    def _wait(self, job_id: str) -> VersionedDecision:
        future = self.order(job_id)
        while not wait([future], _PATIENCE_S).done:
            self._begin(max(_AT_MOST, self._at_once))
        return future.result()

    def _begin(self, at_most: int) -> None:
        """Have another thread think, where there is something to think about and fewer than `at_most` do."""
        with self._lock:
            is_place = bool(self._orders) and self._at_work < at_most
            self._at_work += is_place
        if is_place:
            self._start(self._work_off)

    def _keep(self, job_id: str, future: Future[VersionedDecision]) -> Future[VersionedDecision]:
        self._futures[job_id] = future
        self._futures.move_to_end(job_id)
        while len(self._futures) > _MOST:
            self._futures.popitem(last=False)
        return future

    def _peek(self, job_id: str, version: int) -> VersionedDecision | None:
        with self._lock:
            future = self._futures.get(job_id)
        if future is None or not future.done() or future.exception() is not None:
            return None
        decided = future.result()
        # Thinking itself may have moved the job on; whatever acts upon a decision looks at the version once more.
        return decided if decided.version >= version else None

    def _work_off(self) -> None:
        is_wiser = False
        while True:
            with self._lock:
                if not self._orders:
                    self._at_work -= 1
                    break
                job_id, future = self._orders.popleft()
            try:
                decided = self._think(job_id)
                future.set_result(decided)
                # What is decided for a session waits for the session's own question.
                is_wiser = is_wiser or not decided.is_for_session
            except Exception as error:
                # A job may be deleted while it is thought about.
                if not isinstance(error, Unavailable | UnreadableRecord | JobNotFound):
                    _log.exception("What comes next for job %s could not be thought about", job_id)
                future.set_exception(error)
        if is_wiser:
            # Once, after many: the scheduler, which acts upon decisions, looks at all of them.
            self._tell()
