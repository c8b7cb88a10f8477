"""`advisor serve`: the server, one on a data directory."""

import os
import socket
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.interrupts import interruptible
from advisor.cli.options import screen_of
from advisor.cli.page_link import address_page
from advisor.cli.screen import Screen
from advisor.data_dir import data_dir_of
from advisor.local.record import ServerRunning, free_port, hold_server
from advisor.protocol.logs import LogFormat
from advisor.settings import Settings, find_exposure, is_loopback


def serve(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.", show_default="8765")
    ] = None,
    database_url: Annotated[
        str | None, typer.Option(help="Database.", show_default="SQLite in the data directory")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Database, tokens, logs.", show_default="~/.local/share/fleet-advisor"),
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(help="The log's lines, on standard error.", show_default="text"),
    ] = None,
) -> None:
    """Run the server until it is stopped. Options win over ADVISOR_* environment variables."""
    screen = screen_of(context)
    chosen = {"host": host, "port": port, "database_url": database_url, "log_format": log_format}
    directory = data_dir.expanduser().resolve() if data_dir else data_dir_of(os.environ)
    try:
        settings = Settings(data_dir=directory).model_copy(update=_given(chosen))
    except ValidationError as error:
        raise CommandFailed(
            Exit.USAGE, f"The settings are not valid: {error}", "See `advisor serve --help`."
        ) from error
    if settings.port == 0:
        settings = settings.model_copy(update={"port": free_port()})
    if exposure := find_exposure(settings):
        raise CommandFailed(Exit.USAGE, exposure, "docs/operating.md has an example of each.")
    try:
        from advisor.errors import DiskFull, Unavailable
        from advisor.serving import run_server
        from advisor.storage import DatabaseRefused
    except ModuleNotFoundError as error:
        raise CommandFailed(
            Exit.INTERNAL,
            f"The server's packages are not installed: {error.name} is missing.",
            "Install them: pip install 'fleet-advisor[server]'.",
        ) from error
    scheme = "https" if settings.tls_certificate else "http"
    url = f"{scheme}://{_reachable(settings.host)}:{settings.port}"
    try:
        # The server library ends by raising the signal that stopped it once more: our record has to go first.
        with interruptible(), hold_server(directory, url):
            prove_free(settings)
            # Programs that read the log take objects only.
            is_read = settings.log_format is LogFormat.TEXT
            run_server(settings, greet=lambda: _introduce(screen, settings, url) if is_read else None)
    except KeyboardInterrupt:
        return
    except DatabaseRefused as error:
        raise CommandFailed(Exit.INTERNAL, error.what, error.hint) from error
    except DiskFull as error:
        remedy = f"Make room on it, or give another --data-dir than {directory} or another --database-url."
        raise CommandFailed(Exit.INTERNAL, error.sentence, remedy) from error
    except Unavailable as error:
        raise CommandFailed(
            Exit.INTERNAL, error.sentence, "See that --database-url is right and that the database runs."
        ) from error
    except OSError as error:
        raise CommandFailed(
            Exit.INTERNAL,
            f"{error.filename or directory} cannot be used: {error.strerror or error}.",
            "Give the server a --data-dir on a disk with room, that its user may write in.",
        ) from error
    except ServerRunning as error:
        raise CommandFailed(
            Exit.INTERNAL,
            str(error),
            "Use that one, stop it, or give another --data-dir.",
        ) from error


def prove_free(settings: Settings) -> None:
    """Raise `CommandFailed` where the server could not listen: its library would say so after our greeting."""
    try:
        socket.create_server((settings.host, settings.port), family=_family_of(settings.host)).close()
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise CommandFailed(
            Exit.INTERNAL,
            f"The server cannot listen on {settings.host}, port {settings.port}: {why}.",
            "Stop what listens there, or give another --port; 0 picks a free one.",
        ) from error


def _family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _introduce(screen: Screen, settings: Settings, url: str) -> None:
    directory = settings.data_dir
    screen.tell(f"Fleet Advisor on {url} - data in {directory}")
    if is_loopback(settings.host):
        # A server for others writes to a log that others read.
        screen.tell(f"Your page: {address_page(url, directory, '/jobs')}")
    screen.tell(f"Pages and API ask for a token: the administrator's is in {directory / 'admin-token'}")
    if "SSH_CONNECTION" in os.environ:
        screen.tell(f"From your own machine: ssh -L {settings.port}:127.0.0.1:{settings.port} USER@HOST")


def _given(values: dict[str, str | int | None]) -> dict[str, str | int]:
    return {name: value for name, value in values.items() if value is not None}


def _reachable(host: str) -> str:
    """An address that this machine's own commands reach the server at."""
    return "127.0.0.1" if host in {"0.0.0.0", "", "::"} else f"[{host}]" if ":" in host else host  # noqa: S104
