"""A real server on a free port, and a real Chromium that notes everything it complains about or asks for."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.samples.stored import SUBMITTER, Stories, share_pages

PATIENCE_MS = 30_000
"""A page may be slow to follow on a busy machine."""
expect.set_options(timeout=PATIENCE_MS)
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@dataclass
class Site:
    """The running server and what it answers from."""

    url: str
    stories: Stories
    token: str = SUBMITTER
    """A submitter's."""


@dataclass
class Visitor:
    """A page in a browser, and its complaints."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    """Console errors and warnings, exceptions, failed requests, policy violations."""
    failures: list[str] = field(default_factory=list)
    """Requests that were answered with an error."""
    strangers: list[str] = field(default_factory=list)
    """Requests that left the origin."""

    def go(self, path: str) -> Page:
        """Open a page and return it."""
        self.page.goto(self.url + path)
        return self.page

    def sign_in(self, token: str = SUBMITTER) -> "Visitor":
        """Sign in, as a submitter unless told otherwise."""
        self.go("/login")
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url("**/jobs")
        return self


def await_fit(page: Page, width: int) -> None:
    """Figures are drawn anew a moment after their page was made narrower."""
    for _ in range(PATIENCE_MS // 50):
        if page.evaluate("document.documentElement.scrollWidth") <= width:
            return
        page.wait_for_timeout(50)
    pytest.fail(f"{page.url} is wider than {width}")


@pytest.fixture
def site(stories: Stories) -> Iterator[Site]:
    config = uvicorn.Config(
        share_pages(), host="127.0.0.1", port=0, log_level="error", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        assert thread.is_alive(), "the server ended as it started"
        assert time.monotonic() < deadline, "the server did not start in 30 s"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield Site(f"http://127.0.0.1:{port}", stories)
    server.should_exit = True
    thread.join(timeout=10)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("There is no Chromium on this machine: apt-get install chromium")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium, args=_ARGUMENTS)


@pytest.fixture
def visit(browser: Browser, site: Site) -> Iterator[Callable[..., Visitor]]:
    """Open a browser window; keyword arguments are those of a browser context."""
    contexts: list[BrowserContext] = []

    def open_window(**options: object) -> Visitor:
        context = browser.new_context(**options)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        visitor = Visitor(context.new_page(), site.url)
        page = visitor.page
        page.on(
            "console", lambda m: visitor.complaints.append(m.text) if m.type in {"error", "warning"} else None
        )
        page.on(
            "response",
            lambda r: visitor.failures.append(f"{r.status} {r.url}") if r.status >= 400 else None,
        )
        page.on("pageerror", lambda error: visitor.complaints.append(str(error)))
        page.on(
            "request",
            lambda r: (
                visitor.strangers.append(r.url)
                if urlsplit(r.url).scheme in {"http", "https", "ws"} and not r.url.startswith(site.url)
                else None
            ),
        )
        return visitor

    yield open_window
    for context in contexts:
        context.close()
