"""The command `advisor-agent`: `run` serves a server on this node, `doctor` says whether this node can."""

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import structlog
import typer
from pydantic import SecretStr, ValidationError

from agent.client import ServerClient
from agent.doctor import examine
from agent.errors import AgentError
from agent.loop import Agent
from agent.nvml import open_gpus
from agent.settings import AgentSettings, default_work_dir

_PR_SET_DUMPABLE = 4
_USAGE = 2

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The node's part of Fleet Advisor.")


@app.command()
def run(
    server: Annotated[
        str, typer.Option(envvar="ADVISOR_URL", help="The server's URL, e.g. http://10.0.0.1:8765.")
    ],
    name: Annotated[
        str, typer.Option(help="Stable name of this agent; the host's name when not given.")
    ] = "",
    token_file: Annotated[
        Path | None, typer.Option(envvar="ADVISOR_AGENT_TOKEN_FILE", help="File that holds the agent token.")
    ] = None,
    work_dir: Annotated[
        Path | None, typer.Option(help="Logs, spool and scratch; one agent per directory.")
    ] = None,
    advertise_address: Annotated[
        str | None, typer.Option(help="Address at which the other nodes reach this one.")
    ] = None,
    allow_root: Annotated[
        list[Path] | None,
        typer.Option(help="Start jobs only in this directory (repeatable); any without it."),
    ] = None,
    startup_timeout: Annotated[float, typer.Option(help="Seconds from a launch to the first step.")] = 900.0,
    isolate: Annotated[
        bool, typer.Option("--isolate/--no-isolate", help="Let trials write into a private overlay.")
    ] = True,
) -> None:
    """Serve a server with this node until stopped (Ctrl-C or SIGTERM)."""
    _log_to_stderr()
    _hide_memory_from_same_user()
    agent_name = name or os.uname().nodename
    try:
        settings = AgentSettings(
            server_url=server,
            token=SecretStr(_read_token(token_file)),
            name=agent_name,
            work_dir=(work_dir or default_work_dir(agent_name, Path.home())).absolute(),
            advertise_address=advertise_address,
            allow_roots=tuple(root.absolute() for root in allow_root or ()),
            isolate=isolate,
            startup_timeout_s=startup_timeout,
        )
    except ValidationError as error:
        _fail(str(error.errors()[0]["msg"]), _USAGE)
    gpus = open_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    client = ServerClient(settings.server_url, settings.token.get_secret_value())
    agent = Agent(settings, client, gpus, dict(os.environ))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop())
    try:
        agent.run()
    except AgentError as error:
        _fail(str(error), 1)
    finally:
        client.close()
        gpus.close()


@app.command()
def doctor(
    server: Annotated[
        str | None, typer.Option(envvar="ADVISOR_URL", help="Also try to reach this server.")
    ] = None,
    work_dir: Annotated[Path | None, typer.Option(help="The agent's work directory.")] = None,
) -> None:
    """Say what this node offers, and what stands in an agent's way. Exit code 1 when something does."""
    folder = (work_dir or default_work_dir(os.uname().nodename, Path.home())).absolute()
    gpus = open_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    findings = examine(folder, server, gpus, os.environ)
    gpus.close()
    for finding in findings:
        typer.echo(f"{'ok ' if finding.is_fine else 'NO '} {finding.name:7} {finding.sentence}")
    raise typer.Exit(0 if all(finding.is_fine for finding in findings) else 1)


def main() -> None:
    """Entry point of the installed command."""
    app()


def _read_token(token_file: Path | None) -> str:
    """The file wins over ADVISOR_AGENT_TOKEN; a token is never an argument, which everybody could read."""
    if token_file is None:
        return os.environ.get("ADVISOR_AGENT_TOKEN", "")
    try:
        return token_file.read_text().strip()
    except OSError as error:
        _fail(
            f"The token file {token_file} cannot be read: {error.strerror}. The server's first start wrote one.",
            _USAGE,
        )


def _fail(sentence: str, code: int) -> NoReturn:
    typer.echo(sentence, err=True)
    raise typer.Exit(code)


def _hide_memory_from_same_user() -> None:
    """A training script runs as the same user: without this it could read the token in /proc/<agent>/environ."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _log_to_stderr() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
