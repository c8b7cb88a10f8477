"""How the application is served: what may come unencrypted, and whether the process lives while every thread waits."""

import asyncio
import resource
import threading
from pathlib import Path

import httpx
import pytest
from anyio import to_thread
from starlette.concurrency import run_in_threadpool
from starlette.testclient import TestClient

from advisor.app import create_app
from advisor.serving import configure_server, raise_open_files, run_server
from advisor.settings import Settings, find_exposure

PATIENCE_S = 30.0


@pytest.mark.parametrize(
    ("peer", "scheme", "status"),
    [
        ("127.0.0.2", "http", 200),
        ("::1", "http", 200),
        ("::ffff:127.0.0.1", "http", 200),
        ("10.0.1.7", "http", 403),
        ("fe80::1%eth0", "http", 403),
        ("10.0.1.7", "https", 200),
        ("10.0.0.7", "http", 200),
        ("::ffff:10.0.0.7", "http", 200),
    ],
)
def test_plain_request_from_elsewhere_is_refused_unless_its_network_is_named(
    tmp_path: Path, peer: str, scheme: str, status: int
) -> None:
    settings = Settings(data_dir=tmp_path, trusted_proxies=("10.0.0.0/24",))
    config = configure_server(create_app(settings), settings)
    config.load()
    client = TestClient(config.loaded_app, base_url=f"{scheme}://localhost", client=(peer, 4711))  # type: ignore[arg-type]
    # Whoever is no proxy may claim what it likes.
    reply = client.get("/livez", headers={"X-Forwarded-Proto": "https", "X-Forwarded-For": "127.0.0.1"})
    assert reply.status_code == status
    assert status == 200 or reply.json()["code"] == "unencrypted"


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


def test_the_document_is_made_beside_the_event_loop(tmp_path: Path) -> None:
    app = create_app(Settings(data_dir=tmp_path))
    threads: list[str] = []
    make = app.openapi

    def note() -> dict[str, object]:
        threads.append(threading.current_thread().name)
        return make()

    app.openapi = note  # type: ignore[method-assign]
    reply = TestClient(app, base_url="http://localhost").get("/api/v1/openapi.json")
    assert reply.json()["info"]["title"] == "Fleet Advisor"
    assert threads == ["AnyIO worker thread"]


def test_room_is_made_for_connections_as_far_as_the_system_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        raise_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(65_536, before[1])
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
