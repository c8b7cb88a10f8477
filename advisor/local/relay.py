"""Leads connections from inside network namespaces to a server outside: a port of their loopback is the server's."""

import asyncio
import ctypes
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from advisor.local.namespaces import NAMESPACES
from advisor.local.server import LocalModeFailed

_CLONE_NEWNET = 0x40000000
_CHUNK_BYTES = 65_536
_END_S = 10.0
_PARTING = 3
"""Rounds of a loop in which connections that were given up are closed."""


@contextmanager
def relay_to(host: str, port: int, namespaces: Sequence[str]) -> Iterator[None]:
    """Within the context, 127.0.0.1:`port` inside each namespace leads to `host`:`port` outside.

    The server need not listen on another address, and its traffic does not use the namespaces' links.
    Needs root. Raises `LocalModeFailed`.
    """
    listeners = [_listen_inside(namespace, port) for namespace in namespaces]

    async def serve(listener: socket.socket) -> None:
        async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await lead_to(reader, writer, host, port)

        await (await asyncio.start_server(lead, sock=listener)).serve_forever()

    with talking() as begin:
        for listener in listeners:
            begin(serve(listener))
        yield


@contextmanager
def talking() -> Iterator[Callable[[Coroutine[Any, Any, Any]], "Future[Any]"]]:
    """Offer what runs a coroutine beside the rest of the command, and ends them all in the end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="connections", daemon=True)
    thread.start()

    def begin(coroutine: Coroutine[Any, Any, Any]) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(coroutine, loop)

    async def end() -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(_PARTING):
            await asyncio.sleep(0)

    try:
        yield begin
    finally:
        with suppress(TimeoutError):
            begin(end()).result(_END_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def lead_to(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    """Carry bytes both ways until both sides have closed; an unreachable server closes the connection."""
    try:
        onward_reader, onward_writer = await asyncio.open_connection(host, port)
    except OSError:
        writer.close()
        return
    await carry_both(reader, writer, onward_reader, onward_writer)


async def carry_both(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    onward_reader: asyncio.StreamReader,
    onward_writer: asyncio.StreamWriter,
) -> None:
    """Carry bytes both ways between two connections until both have ended, and close them."""
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_carry(reader, onward_writer))
            both.create_task(_carry(onward_reader, writer))
    except* OSError:
        pass  # One side broke off: the other one is closed as well.
    finally:
        writer.close()
        onward_writer.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
    # TLS has no half of a connection to close.
    writer.write_eof() if writer.can_write_eof() else writer.close()


def _listen_inside(namespace: str, port: int) -> socket.socket:
    """Return a listening socket of that namespace. A thread enters it and ends: only the socket stays there."""

    def listen() -> socket.socket:
        descriptor = os.open(NAMESPACES / namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
                raise LocalModeFailed(
                    f"The namespace {namespace} cannot be entered: {os.strerror(ctypes.get_errno())}.",
                    "A testbed needs root with all of its capabilities; a container may lack CAP_SYS_ADMIN.",
                )
        finally:
            os.close(descriptor)
        return socket.create_server(("127.0.0.1", port))

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(listen).result()
