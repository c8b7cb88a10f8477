"""Slow clients and too many of them, over real sockets; and whether the process lives while every thread waits."""

import asyncio
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import uvicorn
from anyio import to_thread
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from advisor.api.edge.connections import (
    BODY_S,
    HEADER_S,
    MOST_BYTES,
    MOST_HEADER_BYTES,
    LimitedConnection,
    limit_connections,
    make_room_for,
)
from advisor.app import create_app
from advisor.serving import configure_server, run_server
from advisor.settings import Settings, find_exposure
from tests.integration.server.served import FakeAgent, Served

PATIENCE_S = 30.0
HEAD = b"POST / HTTP/1.1\r\nhost: localhost\r\n"
Connect = Callable[..., socket.socket]


ENDED = threading.Event()
"""Set when an answer of `echo` is over."""
STALLED, GO_ON = threading.Event(), threading.Event()
KEEP_ALIVE_S = 0.001


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers with the body; /endless never stops.

    After the answer to /stall nothing runs until GO_ON; by then its connection has lain idle for too long.
    """
    request = Request(scope, receive)

    async def write() -> object:
        while True:
            yield b"x" * 65_536
            await asyncio.sleep(0)

    def stall() -> None:
        STALLED.set()
        GO_ON.wait(PATIENCE_S)

    loop = asyncio.get_running_loop()
    if scope["path"] == "/stall":
        loop.call_later(KEEP_ALIVE_S, stall)
    answer = StreamingResponse(write()) if scope["path"] == "/endless" else Response(await request.body())  # type: ignore[arg-type]
    try:
        await answer(scope, receive, send)
    finally:
        ENDED.set()
        due_s = loop.time() + 5 * KEEP_ALIVE_S
        while scope["path"] == "/stall" and loop.time() < due_s:
            pass


@pytest.fixture
def serve() -> Iterator[Callable[..., Connect]]:
    """Serves `echo` with short limits; gives what connects to it."""
    servers: list[tuple[uvicorn.Server, threading.Thread]] = []
    sockets: list[socket.socket] = []

    def start(
        most: int = 100,
        header_s: float = 60.0,
        body_s: float = 60.0,
        plain_from: tuple[str, ...] = (),
        address: str = "127.0.0.1",
        keep_alive_s: float = 5,
        most_each: int = 100,
    ) -> Connect:
        listening = socket.create_server((address, 0))
        sockets.append(listening)
        protocol = limit_connections(most, plain_from, header_s, body_s, most_each)
        config = uvicorn.Config(
            echo, loop="uvloop", http=protocol, ws="none", lifespan="off", log_level="error",
            timeout_keep_alive=keep_alive_s,  # type: ignore[arg-type]
        )  # fmt: skip
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        servers.append((server, thread))

        def connect(source: str | None = None) -> socket.socket:
            own = (source, 0) if source else None
            sockets.append(socket.create_connection(listening.getsockname(), PATIENCE_S, own))
            return sockets[-1]

        return connect

    yield start
    for connection in sockets:
        connection.close()
    for server, thread in servers:
        server.should_exit = server.force_exit = True
        thread.join(PATIENCE_S)


def read_all(connection: socket.socket) -> bytes:
    """What comes until the server hangs up; fails when it does not."""
    received = b""
    try:
        while part := connection.recv(65_536):
            received += part
    except ConnectionResetError:
        pass
    return received


def test_request_that_came_while_the_server_was_held_up_is_answered_on_a_connection_whose_time_is_over(
    serve: Callable[..., Connect],
) -> None:
    STALLED.clear()
    GO_ON.clear()
    connection = serve(keep_alive_s=KEEP_ALIVE_S)()
    connection.sendall(b"GET /stall HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert STALLED.wait(PATIENCE_S)
    connection.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
    GO_ON.set()
    assert read_all(connection).count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.parametrize("sent", [b"", b"G", b"GET / HTTP/1.1\r\nhost: loc", HEAD])
def test_header_that_does_not_end_is_given_up(serve: Callable[..., Connect], sent: bytes) -> None:
    connection = serve(header_s=0.2)()
    connection.sendall(sent)
    assert read_all(connection).startswith(b"HTTP/1.1 408 Request Timeout\r\n")


def test_header_that_drips_in_is_given_up(serve: Callable[..., Connect]) -> None:
    connection = serve(header_s=0.3)()
    connection.settimeout(0.02)
    received = b""
    for letter in HEAD + b"a" * 10_000:
        try:
            connection.sendall(bytes([letter]))
            received += connection.recv(100)
        except TimeoutError:
            continue
        except OSError:
            break
        if received:
            break
    assert received.startswith(b"HTTP/1.1 408")


def test_second_request_of_a_connection_is_due_too(serve: Callable[..., Connect]) -> None:
    connection = serve(header_s=0.3)()
    connection.sendall(HEAD + b"content-length: 2\r\n\r\nhi")
    assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    connection.sendall(b"POST / HT")
    assert read_all(connection).lstrip(b"hi").startswith(b"HTTP/1.1 408")


def test_body_that_does_not_come_is_given_up(serve: Callable[..., Connect]) -> None:
    connection = serve(body_s=0.2)()
    connection.sendall(HEAD + b"content-length: 10\r\n\r\nhalf")
    assert read_all(connection).startswith(b"HTTP/1.1 408")


def test_reader_that_does_not_read_is_given_up(serve: Callable[..., Connect]) -> None:
    ENDED.clear()
    connection = serve(body_s=0.2)()
    connection.sendall(b"GET /endless HTTP/1.1\r\nhost: localhost\r\n\r\n")
    # Nothing is read: what the kernel holds fills up, and the server hangs up on a stream that has no end.
    assert ENDED.wait(PATIENCE_S)


def test_header_without_end_is_too_large(serve: Callable[..., Connect]) -> None:
    connection = serve()()
    with suppress(OSError):
        connection.sendall(HEAD + b"a: " + b"b" * (MOST_HEADER_BYTES + 65_536))
    assert b"431" in read_all(connection)[:20]


def test_connection_beyond_the_limit_is_refused_until_one_ends(serve: Callable[..., Connect]) -> None:
    connect = serve(most=2)
    held = [connect(), connect()]
    for connection in held:
        connection.sendall(HEAD + b"content-length: 2\r\n\r\nhi")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    assert read_all(connect()).startswith(b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 5")
    held[0].close()
    while not (again := connect_and_ask(connect)).startswith(b"HTTP/1.1 200"):
        assert again.startswith(b"HTTP/1.1 503")


def test_address_that_holds_its_share_is_refused_and_keeps_no_other_one_out(
    serve: Callable[..., Connect],
) -> None:
    connect = serve(most_each=2)
    held = [connect(), connect()]
    assert read_all(connect()).startswith(b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 5")
    assert connect_and_ask(connect, "127.0.0.2").startswith(b"HTTP/1.1 200")
    held[0].close()
    while not (again := connect_and_ask(connect)).startswith(b"HTTP/1.1 200"):
        assert again.startswith((b"HTTP/1.1 429", b"HTTP/1.1 503"))


def test_trusted_proxy_stands_for_many(serve: Callable[..., Connect]) -> None:
    connect = serve(most_each=1, plain_from=("127.0.0.2",))
    for _ in range(3):
        held = connect("127.0.0.2")
        held.sendall(HEAD + b"content-length: 2\r\n\r\nhi")
        assert held.recv(1000).startswith(b"HTTP/1.1 200")
    connect()
    assert read_all(connect()).startswith(b"HTTP/1.1 429")


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("fe80::1%eth0", "fe80::2", True),
    ],
)
def test_what_one_client_may_have_as_addresses_counts_as_one(first: str, second: str, is_same: bool) -> None:
    protocol = limit_connections(10)
    counted = []
    for address in (first, second):
        connection = protocol.__new__(protocol)
        connection.client = (address, 4711)
        counted.append(connection._count())
    assert counted == [1, 2 if is_same else 1]


def test_agent_is_answered_beside_hundreds_that_dribble_from_another_address(
    start: Callable[..., Served],
) -> None:
    served = start(most_connections=300)
    served.submit()
    agent = FakeAgent(served, "one")
    agent.take_place()
    config = configure_server(served.app, served.settings)
    config.lifespan = "off"
    listening = socket.create_server(("127.0.0.1", 0), backlog=512)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    address, inner = listening.getsockname(), served.http
    dribbling = [socket.create_connection(address, PATIENCE_S) for _ in range(350)]
    for connection in dribbling:
        with suppress(OSError):
            connection.sendall(HEAD + b"a: b")
    try:
        transport = httpx.HTTPTransport(local_address="127.0.0.2")
        with httpx.Client(base_url=f"http://localhost:{address[1]}", transport=transport) as other:
            served.http = other  # type: ignore[assignment]
            agent.beat("ready")
    finally:
        served.http = inner
        for connection in (*dribbling, listening):
            connection.close()
        server.should_exit = server.force_exit = True
        thread.join(PATIENCE_S)


def connect_and_ask(connect: Connect, source: str | None = None) -> bytes:
    connection = connect(source)
    try:
        connection.sendall(HEAD + b"content-length: 0\r\nconnection: close\r\n\r\n")
    except OSError:
        return b"HTTP/1.1 503"
    return read_all(connection) or b"HTTP/1.1 503"


def test_request_in_time_is_served_and_its_connection_kept(serve: Callable[..., Connect]) -> None:
    connection = serve(header_s=5.0, body_s=5.0)()
    for _ in range(3):
        connection.sendall(HEAD + b"content-length: 2\r\n\r\nhi")
        answer = b""
        while not answer.endswith(b"hi"):
            answer += connection.recv(1000)
        assert answer.startswith(b"HTTP/1.1 200")


def find_own_address() -> str:
    """An address of this machine other than loopback; "" where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, suppress(OSError):
        asking.connect(("192.0.2.1", 9))
        return str(asking.getsockname()[0])
    return ""


def test_plain_connection_from_elsewhere_is_refused_unless_its_network_is_named(
    serve: Callable[..., Connect],
) -> None:
    address = find_own_address()
    if not address or address.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    assert connect_and_ask(serve(address=address)).startswith(b"HTTP/1.1 403")
    named = serve(address=address, plain_from=(f"{address}/24".rpartition(".")[0] + ".0/24",))
    assert connect_and_ask(named).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "10.0.0.7", "head.example"])
def test_server_beyond_loopback_needs_tls_or_a_proxy_and_says_what_to_write(
    tmp_path: Path, host: str
) -> None:
    plain = Settings(data_dir=tmp_path, host=host)
    with pytest.raises(ValueError, match=r"ADVISOR_TLS_CERTIFICATE=.*ADVISOR_TRUSTED_PROXIES="):
        run_server(plain)
    assert not list(tmp_path.iterdir())
    for safe in ({"tls_certificate": tmp_path / "server.pem"}, {"trusted_proxies": ("10.0.0.5",)}):
        assert find_exposure(plain.model_copy(update=safe)) == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_server_on_loopback_needs_nothing(tmp_path: Path, host: str) -> None:
    assert find_exposure(Settings(data_dir=tmp_path, host=host)) == ""


@pytest.mark.parametrize("proxy", ["*", "proxy.example", "10.0.0.5/24"])
def test_proxy_that_is_no_address_is_refused(tmp_path: Path, proxy: str) -> None:
    with pytest.raises(ValueError, match="no address and no network"):
        Settings(data_dir=tmp_path, trusted_proxies=(proxy,))


def test_server_is_started_with_the_limits(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, most_connections=7)
    protocol = configure_server(echo, settings).http
    assert isinstance(protocol, type)
    assert issubclass(protocol, LimitedConnection)
    assert (protocol.most, protocol.header_s, protocol.body_s) == (7, HEADER_S, BODY_S)
    assert protocol.most_each == 3
    several = settings.model_copy(update={"most_connections_per_address": 5})
    assert configure_server(echo, several).http.most_each == 5  # type: ignore[union-attr]


def test_room_is_made_for_connections_as_far_as_the_system_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        assert make_room_for(600) == 600
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 600
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_process_is_alive_while_every_thread_waits(tmp_path: Path) -> None:
    app = create_app(Settings(data_dir=tmp_path))
    release = threading.Event()

    async def ask() -> int:
        to_thread.current_default_thread_limiter().total_tokens = 1
        waiting = asyncio.create_task(run_in_threadpool(release.wait, PATIENCE_S))
        while to_thread.current_default_thread_limiter().available_tokens:
            await asyncio.sleep(0)
        try:
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://localhost"
            ) as client:
                return (await asyncio.wait_for(client.get("/livez"), PATIENCE_S / 3)).status_code
        finally:
            release.set()
            await waiting

    assert asyncio.run(ask()) == 200


def test_trailers_and_what_encodes_a_body_are_bounded(serve: Callable[..., Connect]) -> None:
    for endless in (b"x: aaaa\r\n" * 8_000, b"y" * 65_536):
        connection = serve()()
        connection.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\nx: ")
        sent = 0
        with suppress(OSError):
            while sent < 4 * MOST_BYTES:
                sent += connection.send(endless)
        assert sent < 2 * MOST_BYTES, "the server hung up"


def test_body_in_chunks_with_a_trailer_is_taken(serve: Callable[..., Connect]) -> None:
    connection = serve()()
    connection.sendall(
        HEAD + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nx: 1\r\n\r\n"
    )
    answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"hi")
