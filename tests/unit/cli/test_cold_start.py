"""What the commands that are asked for most load, and what they read without it."""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from advisor.cli.program import build_app
from advisor.client.answers import ApiProblem, ServerUnreachable
from advisor.client.plain import ask
from advisor.protocol.asked.jobs import JobState

from .fake_server import TOKEN, FakeServer


def list_loaded(words: list[str], **environment: str) -> set[str]:
    """The modules that a command has loaded when it is over."""
    code = "import sys\nfrom advisor.cli import main\ntry: main()\nexcept SystemExit: pass\n"
    code += "print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True, check=True
    )
    assert "Traceback" not in done.stderr
    return set(done.stderr.split())


def test_help_of_all_commands_loads_none_of_them() -> None:
    loaded = list_loaded(["--help"], HOME="/")
    assert "pydantic" not in loaded
    assert not [name for name in loaded if name.startswith("advisor.cli.commands.") and name.count(".") > 3]
    told, whole = build_app(["--help"]), build_app()
    helps = {one.name: one.help for one in [*whole.registered_commands, *whole.registered_groups]}
    assert {one.name: one.help for one in told.registered_commands} == helps


def test_a_command_behind_an_option_is_the_command() -> None:
    app = build_app(["--", "version"])
    (command,) = [one for one in app.registered_commands if one.name == "version"]
    assert command.callback is not None
    assert command.callback.__name__ == "version"


def test_a_list_of_jobs_loads_no_client_and_no_model_of_a_job(server: FakeServer, tmp_path: Path) -> None:
    server.add_job("aaa1", JobState.RUNNING)
    loaded = list_loaded(["jobs"], HOME=str(tmp_path), ADVISOR_URL=server.url, ADVISOR_TOKEN=TOKEN)
    assert server.asked_jobs
    assert not {"httpx", "pydantic", "rich.console", "sqlalchemy"} & loaded


def test_a_redirection_is_a_refusal_and_the_token_goes_nowhere() -> None:
    asked = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{place.server_port}/other")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as place:
        thread = threading.Thread(target=place.handle_request)
        thread.start()
        with pytest.raises(ApiProblem) as refused:
            ask(f"http://127.0.0.1:{place.server_port}/", "secret", "/jobs", {"name": "a b"})
        thread.join()
    assert (refused.value.status, asked) == (302, ["/api/v1/jobs?name=a+b"])


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://[", "nonsense", "http://a b", "file:///etc"])
def test_an_address_that_does_not_answer_is_told(url: str) -> None:
    with pytest.raises(ServerUnreachable, match="No answer from the server at"):
        ask(url, None, "/jobs", {})
