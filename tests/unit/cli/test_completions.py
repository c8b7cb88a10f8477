"""What the shell completes, asked as a shell asks it."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from advisor.cli.completions import complete_job, complete_knob
from advisor.cli.program import COMMANDS, build_app, read_completed
from advisor.exporters import FORMATS
from advisor.protocol.asked.jobs import JobState
from advisor.protocol.knobs.catalogue import CATALOGUE
from tests.unit.cli.fake_server import TOKEN, FakeServer


@pytest.fixture(autouse=True)
def signed_in(server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a shell that has a server."""
    monkeypatch.setenv("ADVISOR_URL", server.url)
    monkeypatch.setenv("ADVISOR_TOKEN", TOKEN)
    monkeypatch.setenv("ADVISOR_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def complete(*words: str) -> list[str]:
    """What bash is told for a line that ends with the last word."""
    typed = {
        "_ADVISOR_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    app = build_app(read_completed(typed))
    result = CliRunner().invoke(app, [], prog_name="advisor", env=typed)
    assert result.exit_code == 0, result.output
    return result.stdout.split()


def test_names_of_knobs_are_completed() -> None:
    wanted = [name for name in CATALOGUE if name.startswith("fuse_grad")]
    assert complete("advisor", "knobs", "fuse_grad") == wanted
    assert complete("advisor", "tune", "--knob", "fuse_grad") == wanted
    assert complete("advisor", "tune", "--values", "num_th") == ["num_threads="]
    assert dict(complete_knob("amp"))["amp"] == CATALOGUE["amp"].meaning


def test_formats_are_completed() -> None:
    assert complete("advisor", "export", "last", "--format", "pad") == [
        name for name in FORMATS if name.startswith("pad")
    ]


def test_jobs_are_completed_from_the_server(server: FakeServer) -> None:
    server.add_job("aaa1", JobState.FINISHED, "bert")
    server.add_job("abb2")
    server.add_job("ccc3")
    assert complete("advisor", "show", "a") == ["abb2", "aaa1"]
    assert complete("advisor", "tune", "--resume", "la") == ["last"]
    assert dict(complete_job("aaa"))["aaa1"] == "bert, finished"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", ""])
def test_no_server_completes_nothing_and_says_nothing(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("ADVISOR_URL", url)
    assert complete("advisor", "show", "a") == []


def test_refused_token_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVISOR_TOKEN", "adv_viewer_x_y")
    assert complete("advisor", "show", "a") == []


def test_silent_server_is_not_waited_for_long(server: FakeServer) -> None:
    released = threading.Event()

    def hang(*request: object) -> tuple[int, bytes]:
        # Much longer than the client's patience, and over as soon as the test is.
        waits.append(released.wait(60))
        return 200, b"{}"

    waits: list[bool] = []
    server.answer = hang  # type: ignore[method-assign, assignment]
    assert complete("advisor", "show", "a") == []
    assert not waits
    released.set()


def test_names_of_commands_are_completed_without_loading_one() -> None:
    assert complete("advisor", "") == list(COMMANDS)
    assert complete("advisor", "re") == [name for name in COMMANDS if name.startswith("re")]
    code = "import sys; from advisor.cli import main\nwith __import__('contextlib').suppress(SystemExit): main()\n"
    code += "print([name for name in sys.modules if name.startswith('advisor.cli.commands.') and name.count('.') > 3])"
    environment = {"_ADVISOR_COMPLETE": "complete_bash", "COMP_WORDS": "advisor re", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[-1] == "[]", done.stdout
