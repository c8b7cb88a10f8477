"""What the tests of the command line share: a pretended server, and the command run against it."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from advisor.cli.program import build_app

from .fake_server import TOKEN, FakeServer, serve_fake

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def activated(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a virtual environment that is activated: `advisor` is on the path."""
    folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(folders))


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A pretended server that answers over HTTP."""
    with serve_fake(FakeServer()) as fake:
        yield fake


@pytest.fixture
def run(server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command against the pretended server, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    environment = {
        "ADVISOR_URL": server.url,
        "ADVISOR_TOKEN": TOKEN,
        "ADVISOR_TOKEN_FILE": None,
        "ADVISOR_DATA_DIR": str(tmp_path / "data"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "NO_COLOR": "1",
        "COLUMNS": "120",
    }

    def run_command(*words: str, **changed: str | None) -> Result:
        env = {**environment, **changed}
        return CliRunner().invoke(build_app(), list(words), prog_name="advisor", env=env)

    return run_command
