"""`advisor admin`: what the operator of a server does to its database: copies, restoring, checking, pruning."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec

import typer

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.options import JsonOption, screen_of
from advisor.data_dir import data_dir_of

if TYPE_CHECKING:
    from advisor.storage import Database
    from advisor.storage.database_file import DatabaseFile

Words = ParamSpec("Words")
_Days = Annotated[float, typer.Option(min=0, metavar="DAYS")]


def build_app() -> typer.Typer:
    """Return the group of commands about a server's database."""
    app = typer.Typer(
        help="Back up, restore, check and prune the database (on the server's machine).", no_args_is_help=True
    )
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
    telemetry_days: _Days = 30,
    log_days: _Days = 90,
    quarantine_days: _Days = 30,
    agent_days: _Days = 90,
    token_days: _Days = 30,
    as_json: JsonOption = False,
) -> None:
    """Take away what is older: telemetry and logs of ended jobs, results that did not count, agents that are gone.

    Advice, results, trials and events of jobs stay for good. A server on SQLite has to be stopped meanwhile.
    """
    from advisor.storage.upkeep import Ages

    now = datetime.now(UTC)
    ages = Ages(
        telemetry=now - timedelta(days=telemetry_days),
        logs=now - timedelta(days=log_days),
        quarantine=now - timedelta(days=quarantine_days),
        agents=now - timedelta(days=agent_days),
        tokens=now - timedelta(days=token_days),
    )
    with _open() as database:
        database.prove_current()
        database.hold()
        with database.begin() as work:
            gone = work.upkeep.prune(ages)
        if database.file is not None:
            database.file.shrink()
    screen = screen_of(context)
    if as_json:
        screen.print_json({"removed": gone})
        return
    for kind, count in gone.items():
        screen.show(f"{count:8} {kind}")


@contextmanager
def _open() -> Iterator["Database"]:
    """The database of this machine's server: ADVISOR_DATABASE_URL, or the file in ADVISOR_DATA_DIR."""
    from advisor.settings import Settings
    from advisor.storage import Database

    settings = Settings(data_dir=data_dir_of(os.environ))
    database = Database(settings.url, lambda: "unused")
    try:
        yield database
    finally:
        database.close()


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
