"""Which server a command talks to, with which token; and which job a word means."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from advisor.cli.exits import CommandFailed, Exit
from advisor.client.answers import ApiProblem
from advisor.data_dir import data_dir_of
from advisor.local.record import running_server, tuning_words
from advisor.protocol.plain_text import clean_text
from advisor.protocol.states import JobState

if TYPE_CHECKING:
    # A list of jobs loads neither a client nor a job's model, and what asks a server not the database's library.
    from advisor.client import Client
    from advisor.local.book import LocalBook
    from advisor.protocol.asked.jobs import Job

    Reader = Client | LocalBook

_DATABASE = "advisor.db"
_PAGE = 200
_MOST_TOLD = 3
_NOT_YET = {"advice_not_ready", "job_is_live"}
_HINT_TO_RESUME = (
    "Nothing is measured on this machine now. Go on with a job that was interrupted: `{} --resume last` (or "
    "the job's id; `advisor jobs` lists them). For other machines: `advisor serve`, or set ADVISOR_URL."
)


def token_of(environment: Mapping[str, str]) -> str | None:
    """Return the user's token; None when none is set."""
    if token := environment.get("ADVISOR_TOKEN", "").strip():
        return token
    if not (path := environment.get("ADVISOR_TOKEN_FILE")):
        return None
    try:
        return Path(path).expanduser().read_text().strip()
    except OSError as error:
        raise CommandFailed(
            Exit.NOT_ALLOWED,
            f"The token file cannot be read: {error}.",
            "Point ADVISOR_TOKEN_FILE at a file that holds a token, or set ADVISOR_TOKEN.",
        ) from error


def find_server(environment: Mapping[str, str]) -> tuple[str, str | None]:
    """Return address and token of the server that the environment names, or else of the one of this machine."""
    if url := environment.get("ADVISOR_URL"):
        return url, token_of(environment)
    data_dir = data_dir_of(environment)
    if (record := running_server(data_dir)) is None:
        raise CommandFailed(
            Exit.UNREACHABLE,
            f"No server runs on this machine for {data_dir}, and ADVISOR_URL is not set.",
            _HINT_TO_RESUME.format(f"advisor {tuning_words(data_dir)}")
            if _has_database(data_dir)
            else "Start one with `advisor serve`, or set ADVISOR_URL to a server's address. `advisor tune` starts "
            "and stops its own.",
        )
    try:
        local_token = (data_dir / "admin-token").read_text().strip()
    except OSError:
        local_token = None
    return record.url, token_of(environment) or local_token


def connect(environment: Mapping[str, str]) -> "Client":
    """Return a client for the server that `find_server` finds."""
    from advisor.client import Client

    return Client(*find_server(environment), patience_s=0)


def is_left_behind(environment: Mapping[str, str]) -> bool:
    """Whether jobs are asked for that a tuning of this machine has left behind: its server stopped with it."""
    data_dir = data_dir_of(environment)
    return not environment.get("ADVISOR_URL") and not running_server(data_dir) and _has_database(data_dir)


@contextmanager
def look_at(environment: Mapping[str, str]) -> "Iterator[Reader]":
    """Offer what `look_up` does to a command that changes nothing.

    What a tuning of this machine has left behind is read from its database then: that takes no server.
    """
    if is_left_behind(environment):
        from advisor.local.book import LocalBook

        data_dir = data_dir_of(environment)
        with LocalBook(data_dir / _DATABASE) as book:
            if book.is_current():
                with _told_how_to_go_on(data_dir):
                    yield book
                if sys.stderr.isatty():
                    _tell_interrupted(book, data_dir)
                return
    with look_up(environment) as client:
        yield client


@contextmanager
def look_up(environment: Mapping[str, str]) -> "Iterator[Client]":
    """Offer a client as `connect` does, also for what a tuning of this machine has left behind.

    Its server stopped with the command that started it: where its database is there, one runs for as long as the
    context lasts. Nothing is measured then, which a job that was interrupted does not know: people at a
    terminal are told how it goes on.
    """
    if not is_left_behind(environment):
        with connect(environment) as client:
            yield client
        return
    from advisor.client import Client
    from advisor.local.server import local_server

    data_dir = data_dir_of(environment)
    with (
        local_server(data_dir, environment, lambda _: None, alone=True) as server,
        Client(server.url, server.token, patience_s=0) as client,
    ):
        with _told_how_to_go_on(data_dir) if server.started_here else nullcontext():
            yield client
        if server.started_here and sys.stderr.isatty():
            _tell_interrupted(client, data_dir)


@contextmanager
def _told_how_to_go_on(data_dir: Path) -> Iterator[None]:
    try:
        yield
    except ApiProblem as problem:
        if problem.code not in _NOT_YET:
            raise
        hint = _HINT_TO_RESUME.format(f"advisor {tuning_words(data_dir)}")
        raise CommandFailed(Exit.JOB_NOT_FINISHED, problem.detail, hint) from problem


def _tell_interrupted(client: "Reader", data_dir: Path) -> None:
    waiting = [job for job in unfinished_jobs(client) if job.state in {JobState.QUEUED, JobState.RUNNING}]
    for job in waiting[:_MOST_TOLD]:
        name = clean_text(job.spec.name or job.id)
        resume = f"advisor {tuning_words(data_dir)} --resume {job.id}"
        typer.echo(f"Nothing is measured now. Go on with {name}: {resume}", err=True)


def _has_database(data_dir: Path) -> bool:
    return (data_dir / _DATABASE).is_file()


def resolve_job(client: "Reader", reference: str) -> "Job":
    """Return the job that `reference` means: an id, the start of one, a name, or `last`.

    Raises `CommandFailed` when none or several fit.
    """
    from advisor.protocol.views import JobQuery

    newest = JobQuery(limit=1)
    matches = client.list_jobs(newest).items[:1] if reference == "last" else _find_jobs(client, reference)
    if not matches:
        raise CommandFailed(
            Exit.NOT_FOUND, f"There is no job {reference} on {client.url}.", "`advisor jobs` lists them."
        )
    if len(matches) > 1:
        ids = ", ".join(job.id for job in matches[:5])
        raise CommandFailed(
            Exit.NOT_FOUND, f"{reference} may be any of several jobs: {ids}.", "Give more of the id."
        )
    return matches[0]


def _find_jobs(client: "Reader", reference: str) -> "tuple[Job, ...]":
    """The jobs of this id; or else those of this name; or else those whose id begins so."""
    from advisor.protocol.views import JobQuery

    for wanted in ({"id": reference}, {"name": reference}, {"id": f"{reference}*"}):
        if matches := client.list_jobs(JobQuery(**wanted, archived=True)).items:
            return matches
    return ()


def unfinished_jobs(client: "Reader") -> "list[Job]":
    """Return the jobs of a server that have not ended, newest first."""
    from advisor.protocol.views import JobQuery

    wanted = JobQuery(state=tuple(state for state in JobState if not state.is_final), limit=_PAGE)
    page = client.list_jobs(wanted)
    jobs = list(page.items)
    while page.next_cursor is not None:
        page = client.list_jobs(wanted.model_copy(update={"cursor": page.next_cursor}))
        jobs += page.items
    return jobs
