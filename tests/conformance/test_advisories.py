"""What the server's image installs, looked up on pypi.org; and that look-up itself, tried on a made-up PyPI."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from .advisories import LOCK, Audit, audit, reach_pypi

pytestmark = pytest.mark.conformance

VULNERABLE = "jinja2"
ADVISORY = {
    "id": "GHSA-0000-made-up00",
    "aliases": ["CVE-2000-0001"],
    "summary": "Made up for this test.",
    "fixed_in": ["99.2", "99.1"],
    "withdrawn": None,
}
Answer = tuple[int, bytes]


def say(*advisories: dict[str, object]) -> Answer:
    return 200, json.dumps({"info": {}, "vulnerabilities": advisories}).encode()


@contextmanager
def serve_pypi(answer: Callable[[str], Answer]) -> Iterator[str]:
    """A server on loopback that gives each package's answer under the path of PyPI's JSON API."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, pypi, name, _version, document = self.path.split("/")
            status, body = answer(name) if (pypi, document) == ("pypi", "json") else (400, b"")
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(answer: Callable[[str], Answer], cache: Path) -> Audit:
    with serve_pypi(answer) as address:
        return audit(reach_pypi(cache, address))


def test_nothing_that_the_image_installs_is_known_to_be_vulnerable(tmp_path: Path) -> None:
    found = audit(reach_pypi(tmp_path))
    if found.silence and not found.vulnerable:
        pytest.skip(str(found))
    assert found.exit_code == 0, str(found)
    assert found.looked_up > 40


def test_a_known_vulnerability_is_found_with_the_version_that_mends_it(tmp_path: Path) -> None:
    found = ask(lambda name: say(ADVISORY) if name == VULNERABLE else say(), tmp_path)
    [sentence] = found.vulnerable
    assert sentence.startswith(f"{VULNERABLE} ")
    assert "CVE-2000-0001, GHSA-0000-made-up00, mended in 99.1 or 99.2" in sentence
    assert found.exit_code == 1
    assert found.looked_up == ask(lambda name: say(), tmp_path).looked_up > 40
    assert not found.silence


def test_a_service_that_knows_of_none_is_believed(tmp_path: Path) -> None:
    found = ask(lambda name: say({**ADVISORY, "withdrawn": "2026-01-01T00:00:00Z"}), tmp_path)
    assert (found.exit_code, found.vulnerable, found.silence) == (0, [], "")


def test_a_package_that_the_service_lacks_is_not_passed_over(tmp_path: Path) -> None:
    found = ask(lambda name: (404, b"") if name == VULNERABLE else say(), tmp_path)
    assert found.exit_code == 2
    assert VULNERABLE in "".join(found.not_looked_up)


@pytest.mark.parametrize(
    "answer",
    [(404, b""), (503, b""), (200, b"<p>Please sign in.</p>"), (200, b'{"info": {}}')],
    ids=["not found", "out of order", "a page", "no advisories"],
)
def test_what_knows_no_advisories_is_no_service(answer: Answer, tmp_path: Path) -> None:
    found = ask(lambda name: answer, tmp_path)
    assert found.silence
    assert (found.exit_code, found.looked_up, found.vulnerable) == (3, 0, [])


def test_nobody_at_the_address_is_no_service(tmp_path: Path) -> None:
    with serve_pypi(lambda name: say()) as address:
        pass
    assert audit(reach_pypi(tmp_path, address)).exit_code == 3


def test_what_was_found_before_the_service_fell_silent_counts(tmp_path: Path) -> None:
    found = ask(lambda name: say(ADVISORY) if name == "alembic" else (503, b""), tmp_path)
    assert LOCK.read_text().startswith("alembic==")
    assert found.silence
    assert found.exit_code == 1
