"""The dashboard in a real Chromium, while its server stops and starts again on the same database."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI
from playwright.sync_api import expect

from tests.integration.server.served import Served, wait_for
from tests.integration.server.stage import Stage

pytestmark = pytest.mark.browser


class Listening:
    """A running server behind a port; on 0 it takes a free one."""

    def __init__(self, app: FastAPI, port: int = 0) -> None:
        # Whoever made the application has started it.
        config = uvicorn.Config(
            app, port=port, lifespan="off", log_level="error", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        wait_for(lambda: self._server.started or None, "the server listens")
        self.port: int = self._server.servers[0].sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Close the port; may be repeated."""
        self._server.should_exit = True
        self._thread.join(timeout=20)


def test_page_of_a_running_job_goes_on_over_a_restart(visit: Callable, tmp_path: Path) -> None:
    first = Served(tmp_path)
    stage, listening = Stage(first), Listening(first.app)
    visitor = visit()
    visitor.url = f"http://127.0.0.1:{listening.port}"
    page = visitor.go("/login")
    page.get_by_label("Token").fill(first.admin)
    page.get_by_role("button", name="Sign in").click()
    page = visitor.go(f"/jobs/{stage.job.id}")
    page.evaluate("window.isTheSamePage = true")
    expect(page.locator("#lost")).to_be_hidden()
    listening.stop()
    first.stop()
    expect(page.locator("#lost")).to_contain_text("does not answer", timeout=30_000)
    expect(page.locator("#lost")).to_be_visible(timeout=30_000)

    second = Served(tmp_path)
    listening = Listening(second.app, listening.port)
    expect(page.locator("#lost")).to_be_hidden(timeout=30_000)
    assert second.ask("POST", f"/jobs/{stage.job.id}:pause").status_code == 200
    expect(page.locator("#job-head")).to_contain_text("paused", timeout=30_000)
    assert page.evaluate("window.isTheSamePage")
    page.goto("about:blank")
    listening.stop()
    second.stop()
