"""`advisor admin`: what the operator of a server does to its database: copies, restoring, checking, pruning."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec

import typer

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.options import JsonOption, screen_of
from advisor.data_dir import data_dir_of

if TYPE_CHECKING:
    from advisor.settings import Settings
    from advisor.storage import Database
    from advisor.storage.sqlite.database_file import DatabaseFile

Words = ParamSpec("Words")
_Days = Annotated[float | None, typer.Option(min=0, metavar="DAYS")]


def build_app() -> typer.Typer:
    """Back up, restore, check and prune the database (on the server's machine)."""
    app = typer.Typer(no_args_is_help=True)
    for name, command in (("backup", backup), ("restore", restore), ("check", check), ("prune", prune)):
        app.command(name)(_explained(command))
    return app


def backup(context: typer.Context, file: Annotated[Path, typer.Argument(metavar="FILE")]) -> None:
    """Write a whole copy of a SQLite database to a new file; the server may run meanwhile."""
    with _open() as database:
        _file_of(database).copy_to(file.expanduser().resolve())
    screen_of(context).show(f"The database was copied to {file}.")


def restore(context: typer.Context, file: Annotated[Path, typer.Argument(metavar="FILE")]) -> None:
    """Put a copy in the place of a SQLite database; what was there is kept beside it. The server has to be stopped."""
    with _open() as database:
        kept = _file_of(database).replace_by(file.expanduser().resolve())
    screen = screen_of(context)
    screen.show(f"The database is that of {file} now.")
    if kept is not None:
        screen.show(f"What was there before: {kept}")


def check(context: typer.Context, as_json: JsonOption = False) -> None:
    """Prove that the database is whole and that what it holds fits together."""
    with _open() as database:
        database.prove_current()
        with database.read() as work:
            damage = work.upkeep.find_damage()
    screen = screen_of(context)
    if as_json:
        screen.print_json({"damage": damage})
    for sentence in damage if not as_json else ():
        screen.show(f"{sentence}.")
    if damage:
        raise CommandFailed(
            Exit.INTERNAL,
            f"The database breaks {len(damage)} rule{'s' if len(damage) != 1 else ''}.",
            "Keep a copy of it and go back to a backup: advisor admin restore FILE.",
        )
    if not as_json:
        screen.show("All is well.")


def prune(
    context: typer.Context,
    job_days: _Days = None,
    log_days: _Days = None,
    telemetry_days: _Days = None,
    quarantine_days: _Days = None,
    agent_days: _Days = None,
    token_days: _Days = None,
    as_json: JsonOption = False,
) -> None:
    """Take away at once what is older than the server's own settings keep (ADVISOR_KEEP_…_DAYS), or than told here.

    A running server does so by itself, unless ADVISOR_PRUNE=false. A server on SQLite has to be stopped meanwhile.
    """
    from advisor.services.background.pruning import count_ages

    given = {
        "keep_jobs_days": job_days,
        "keep_logs_days": log_days,
        "keep_telemetry_days": telemetry_days,
        "keep_quarantine_days": quarantine_days,
        "keep_agents_days": agent_days,
        "keep_tokens_days": token_days,
    }
    told = {name: days for name, days in given.items() if days is not None}
    with _open() as database:
        database.prove_current()
        if database.is_sqlite:
            database.hold()
        with database.begin() as work:
            gone = work.upkeep.prune(count_ages(_read_settings().model_copy(update=told), datetime.now(UTC)))
        screen = screen_of(context)
        if as_json:
            screen.print_json({"removed": gone})
        for kind, count in gone.items() if not as_json else ():
            screen.show(f"{count:8} {kind}")
        if database.file is not None:
            database.file.shrink()


@contextmanager
def _open() -> Iterator["Database"]:
    """The database of this machine's server: ADVISOR_DATABASE_URL, or the file in ADVISOR_DATA_DIR."""
    from advisor.storage import Database

    database = Database(_read_settings().url, lambda: "unused")
    try:
        yield database
    finally:
        database.close()


def _read_settings() -> "Settings":
    from advisor.settings import Settings

    return Settings(data_dir=data_dir_of(os.environ))


def _file_of(database: "Database") -> "DatabaseFile":
    if database.file is None:
        raise CommandFailed(
            Exit.USAGE,
            "This is for SQLite; the database is on a PostgreSQL server.",
            "Use PostgreSQL's own means: pg_dump --format=custom, pg_restore.",
        )
    return database.file


def _explained(command: Callable[Words, None]) -> Callable[Words, None]:
    """Say in a sentence what is the matter with a database."""

    @wraps(command)
    def run(*words: Words.args, **options: Words.kwargs) -> None:
        from advisor.errors import Unavailable
        from advisor.storage import DatabaseRefused

        try:
            command(*words, **options)
        except DatabaseRefused as error:
            raise CommandFailed(Exit.INTERNAL, error.what, error.hint) from error
        except Unavailable as error:
            raise CommandFailed(
                Exit.INTERNAL,
                error.sentence,
                "See that it is there and runs: ADVISOR_DATA_DIR, ADVISOR_DATABASE_URL.",
            ) from error

    return run
