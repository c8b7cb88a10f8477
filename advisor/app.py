"""The application: wires settings, database, services, API and dashboard together."""

import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta

from anyio import CapacityLimiter
from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from advisor import __version__
from advisor.api import build_api
from advisor.api.access import FailureCounter
from advisor.api.context import Context
from advisor.api.edge.headers import SafeAnswers
from advisor.api.edge.limits import Buckets, SizeCheck, Streams
from advisor.api.edge.problems import NothingThere, answer_with_problems, document_problems, serve_document
from advisor.api.edge.refusals import HostCheck
from advisor.api.edge.requests import PREFIX, RequestWatch
from advisor.api.health import router as health
from advisor.data_dir import make_private
from advisor.services.background.keeper import Keeper
from advisor.services.background.lobby import Lobby
from advisor.services.background.pruning import PAUSE_S, Pruner
from advisor.services.background.reaper import AwakeClock, Reaper
from advisor.services.background.scheduling import Scheduler
from advisor.services.measuring.leases import Leases
from advisor.services.metrics import Metrics
from advisor.services.planning.decided import Overdue, VersionedDecision, settle, think
from advisor.services.planning.planner_queue import PlannerQueue
from advisor.services.planning.processes import PlannerProcesses, Question, Setting
from advisor.services.timers import Timers
from advisor.services.tokens import KnownTokens, ensure_first_tokens
from advisor.services.visits import take_link
from advisor.settings import Settings
from advisor.storage import Database
from advisor.storage.fault_points import Strike, pass_by
from advisor.storage.notifier import JOBS, PLACES
from advisor.storage.whole.census import Census
from advisor.tuning.asked import Tuning

_ID_BYTES = 5
_SILENT_S = 10.0
"""A server that PostgreSQL hears nothing from for so long loses its lock, and another one may start."""
_MOST_WRITERS = 20
"""Reports that are written to PostgreSQL at one time."""


def read_clock() -> datetime:
    """Return the present time in UTC."""
    return datetime.now(UTC)


def make_id() -> str:
    """Return a short random id: lower-case letters and digits, no two alike in practice."""
    return secrets.token_hex(_ID_BYTES)


def create_app(
    settings: Settings,
    *,
    tuning: Tuning | None = None,
    clock: Callable[[], datetime] = read_clock,
    new_id: Callable[[], str] = make_id,
    stopping: threading.Event | None = None,
    strike: Strike = pass_by,
    timers: Timers | None = None,
) -> FastAPI:
    """Return the application. Nothing is opened before it starts up; shutting it down closes everything.

    At start-up the tables are brought to this release's form, the first tokens are written to the data directory,
    and every live lease gets new time. `tuning`, `clock`, `new_id`, `strike` and `timers` are there for tests.
    """
    timers = timers or Timers(
        beat_s=settings.beat_s,
        lease_s=settings.lease_s,
        grace_s=settings.grace_s,
        assemble_s=settings.assemble_s,
        silent_s=settings.poll_s + settings.lease_s / 3,
        restart_s=settings.restart_s,
    )
    metrics = Metrics()
    database = Database(settings.url, new_id, metrics.note_transaction, strike)
    metrics.ask_database(lambda: _take_census(database, clock(), timers))

    processes, overdue = _make_processes(settings, timers) if tuning is None else None, Overdue()
    tuning = tuning or Tuning()

    def decide(job_id: str) -> VersionedDecision:
        now = clock()
        if processes is None:
            decided = think(database, tuning, job_id, now, timers, overdue)
        else:
            decided = settle(database, lambda: processes.look(Question(job_id, now)), now)
        metrics.note_plan(decided.took_s, quick=bool(decided.late))
        return decided

    context = Context(
        settings=settings,
        database=database,
        tuning=tuning,
        timers=timers,
        clock=clock,
        lobby=Lobby(database, timers),
        planner_queue=PlannerQueue(
            decide, _start_thread, lambda: database.notifier.ring(JOBS), max(1, settings.planner_processes)
        ),
        known_tokens=KnownTokens(database),
        leases=Leases(database),
        writers=CapacityLimiter(1 if database.is_sqlite else _MOST_WRITERS),
        metrics=metrics,
        stopping=stopping or threading.Event(),
    )
    app: FastAPI = FastAPIOffline(
        title="Fleet Advisor",
        version=__version__,
        description="An auto-tuning performance advisor for distributed training. Errors are problem documents "
        "(RFC 9457) with a `code` for programs and a `hint` for people. Every route but /livez and /readyz needs a "
        "token: `Authorization: Bearer adv_…`.",
        openapi_url=f"{PREFIX}/openapi.json",
        redoc_url=None,
        static_url="/docs/static",
        lifespan=_live(context, processes),
    )
    app.state.context = context
    app.state.failures = FailureCounter(time.monotonic)
    app.state.buckets = Buckets(settings.most_requests_per_s, settings.most_requests_at_once, time.monotonic)
    app.state.streams = Streams(settings.most_streams)
    app.add_middleware(SizeCheck)
    app.add_middleware(HostCheck, allowed=settings.allowed_hosts)
    app.add_middleware(SafeAnswers)
    app.add_middleware(RequestWatch, metrics=metrics)
    api = build_api()
    app.include_router(api, prefix=PREFIX)
    app.mount(PREFIX, NothingThere(api))
    app.router.routes.append(Route(PREFIX, NothingThere(api)))
    app.include_router(health)
    addresses = [route.path for route in health.routes if isinstance(route, Route)]
    app.router.routes += [Route(path, NothingThere(health)) for path in addresses]
    answer_with_problems(app)
    document_problems(app)
    serve_document(app)
    # Last, because it answers for everything that no other route takes.
    app.mount("/", _LatePages(context, app.state.failures.count, app.state.streams))
    return app


def _make_processes(settings: Settings, timers: Timers) -> PlannerProcesses | None:
    if not settings.planner_processes:
        return None
    setting = Setting(settings.url, timers.think_s, settings.log_format)
    return PlannerProcesses(setting, settings.planner_processes)


def _live(
    context: Context, processes: PlannerProcesses | None
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(_open, context)
        keepers = _make_keepers(context)
        for keeper in keepers:
            keeper.start()
        try:
            yield
        finally:
            context.stopping.set()
            if processes is not None:
                await run_in_threadpool(processes.close)
            for keeper in keepers:
                await run_in_threadpool(keeper.stop)
            await run_in_threadpool(context.database.close)

    return lifespan


def _take_census(database: Database, now: datetime, timers: Timers) -> Census:
    with database.read() as work:
        return work.counts.take(now - timedelta(seconds=timers.silent_s))


def _open(context: Context) -> None:
    data_dir = context.settings.data_dir
    make_private(data_dir)
    context.database.hold()
    # A server that is heard of at every tick is silent when it misses a few of them.
    context.database.begin_serving(max(_SILENT_S, 3 * context.settings.tick_s))
    ensure_first_tokens(context.database, data_dir, context.clock())


def _start_thread(run: Callable[[], None]) -> None:
    # Planning may take longer than a server that stops should wait for.
    threading.Thread(target=run, name="planning", daemon=True).start()


def _make_keepers(context: Context) -> list[Keeper]:
    """The threads that do what time makes necessary."""
    database, timers, lobby, clock = context.database, context.timers, context.lobby, context.clock
    tick_s, look_s, watched = context.settings.tick_s, context.settings.look_s, context.metrics.watch_keeper
    notifier, scheduling, pruning = database.notifier, threading.Event(), threading.Event()
    notifier.on(JOBS, scheduling.set)
    notifier.on(PLACES, lobby.wake.set)

    reaper = Reaper(database, timers, AwakeClock(time.monotonic, 2 * tick_s), context.leases)
    scheduler = Scheduler(database, context.planner_queue, timers, served_since=clock())
    pruner = Pruner(database, context.settings, clock(), time.monotonic)

    def schedule() -> None:
        if scheduler.look(clock()):
            notifier.ring(PLACES)

    def prune() -> None:
        if pruner.step(clock()):
            pruning.set()

    def receive() -> None:
        if context.stopping.is_set():
            lobby.call()
        elif lobby.look(clock()):
            notifier.ring(JOBS)

    def keep_hold() -> None:
        if not database.keep_hold():
            context.stopping.set()

    keepers = [
        Keeper("reaper", lambda: reaper.look(clock()), tick_s, on_round=watched("reaper")),
        Keeper("scheduler", schedule, tick_s, scheduling, watched("scheduler")),
        Keeper("lobby", receive, look_s, lobby.wake, watched("lobby")),
    ]
    if context.settings.prune:
        keepers.append(Keeper("pruner", prune, PAUSE_S, pruning))
    if not database.is_sqlite:
        keepers.append(Keeper("lock", keep_hold, tick_s, on_round=watched("lock")))
    return keepers


class _LatePages:
    """The dashboard, built at its first request: its libraries are large, and a job needs none of them."""

    def __init__(self, context: Context, count_failure: Callable[[str], None], streams: Streams) -> None:
        self._context = context
        self._count_failure, self._streams = count_failure, streams
        self._pages: ASGIApp | None = None
        self._one_at_a_time = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pages = self._pages
        if pages is None:
            pages = await run_in_threadpool(self._build)
        await pages(scope, receive, send)

    def _build(self) -> ASGIApp:
        from advisor.dashboard import Source, build_pages

        context = self._context
        with self._one_at_a_time:
            if self._pages is None:
                self._pages = build_pages(
                    Source(context.database, context.clock, context.tuning, context.timers),
                    is_stopping=context.stopping.is_set,
                    count_failure=self._count_failure,
                    hold_stream=self._streams.hold,
                    take_link=lambda secret: take_link(context.settings.data_dir, secret, context.clock()),
                )
            return self._pages
