"""Serving the application: what a server is told about proxies, stopping, and the process that it runs in."""

import asyncio
import gc
import resource
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from advisor.api.edge.refusals import EncryptionCheck
from advisor.app import create_app, read_clock
from advisor.logs import configure_logs
from advisor.settings import Settings, find_exposure
from advisor.storage import Database

_GRACEFUL_S = 3
_KEEP_ALIVE_S = 75
_BACKLOG = 4096
_OPEN_FILES = 65_536
"""An agent that waits for work holds a connection, and each connection is an open file."""
_NEW_DATE, _DATE_S = 0, 1.0
"""uvicorn's number of a tick that renews the date of answers, and how often that is to be."""
_SWITCH_S = 0.0005
"""After this long a thread that calculates lets others go on: the planner's threads would keep requests waiting."""


def run_server(
    settings: Settings,
    *,
    clock: Callable[[], datetime] = read_clock,
    greet: Callable[[], None] = lambda: None,
) -> None:
    """Serve until a signal arrives, or another server has followed on the database. Answers held open are given at once
    then, so that stopping is quick.

    `greet` is called once the database answers.

    Raises ValueError where what is sent could be read on the way (`find_exposure`), and DatabaseRefused for a database
    that this server must not touch: before anything is opened, or at the end where another server has followed.
    """
    if exposure := find_exposure(settings):
        raise ValueError(exposure)
    configure_logs(settings.log_format, sys.stderr)
    sys.setswitchinterval(_SWITCH_S)
    raise_open_files()
    stopping = threading.Event()
    app = create_app(settings, clock=clock, stopping=stopping)
    database: Database = app.state.context.database
    database.hold()
    greet()
    _Server(configure_server(app, settings), stopping).run()
    if database.refused is not None:
        raise database.refused


def configure_server(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    """Return how `app` is served."""
    proxies = list(settings.trusted_proxies)
    plain = [*proxies, *settings.plain_networks]
    return uvicorn.Config(
        EncryptionCheck(ProxyHeadersMiddleware(app, proxies) if proxies else app, plain),  # type: ignore[arg-type]
        host=settings.host,
        port=settings.port,
        workers=1,
        loop="uvloop",
        http="httptools",
        ws="none",
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACEFUL_S,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
    )


def raise_open_files() -> None:
    """Raise this process's limit of open files as far as many agents need and the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Server(uvicorn.Server):
    """Tells requests that are held open about a signal: uvicorn itself would wait for them."""

    def __init__(self, config: uvicorn.Config, stopping: threading.Event) -> None:
        super().__init__(config)
        self._stopping = stopping
        self._end: Callable[[], object] = lambda: None

    async def main_loop(self) -> None:
        """Wait for the end. uvicorn itself looks ten times a second, which is a third of what an idle server takes."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        self._end = lambda: loop.call_soon_threadsafe(ended.set)
        while not await self.on_tick(_NEW_DATE) and not self._stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _DATE_S)

    async def startup(self, sockets: Any = None) -> None:
        """Begin to serve, and keep the garbage collector's long rounds away from requests.

        A round over all that the libraries have loaded stops every request for 0.1 s: what is there by now stays, and
        is looked at no more.
        """
        await super().startup(sockets)
        gc.collect()
        gc.freeze()

    def handle_exit(self, sig: int, frame: object) -> None:
        """Remember the signal and answer what is held open."""
        self._stopping.set()
        super().handle_exit(sig, frame)  # type: ignore[arg-type]
        self._end()
