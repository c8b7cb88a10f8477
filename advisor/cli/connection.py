"""Which server a command talks to, with which token; and which job a word means."""

from collections.abc import Mapping
from pathlib import Path

from advisor.cli.exits import CommandFailed, Exit
from advisor.client import Client
from advisor.local.record import running_server
from advisor.protocol.jobs import Job
from advisor.settings import Settings

_PAGE = 100
_MOST_PAGES = 20


def data_dir_of(environment: Mapping[str, str]) -> Path:
    """Return the data directory of this machine's server."""
    default = Settings.model_fields["data_dir"].get_default(call_default_factory=True)
    return Path(environment.get("ADVISOR_DATA_DIR") or default).expanduser().resolve()


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


def connect(environment: Mapping[str, str]) -> Client:
    """Return a client for the server that the environment names, or else for the one of this machine."""
    if url := environment.get("ADVISOR_URL"):
        return Client(url, token_of(environment))
    data_dir = data_dir_of(environment)
    if (record := running_server(data_dir)) is None:
        raise CommandFailed(
            Exit.UNREACHABLE,
            f"No server runs on this machine for {data_dir}, and ADVISOR_URL is not set.",
            "Start one with `advisor serve`, or set ADVISOR_URL to a server's address. `advisor tune` starts "
            "and stops its own.",
        )
    try:
        local_token = (data_dir / "admin-token").read_text().strip()
    except OSError:
        local_token = None
    return Client(record.url, token_of(environment) or local_token)


def resolve_job(client: Client, reference: str) -> Job:
    """Return the job that `reference` means: an id, the start of one, a name, or `last`.

    Raises `CommandFailed` when none or several fit.
    """
    jobs = all_jobs(client)
    if reference == "last":
        matches = jobs[:1]
    else:
        # A job's exact id or name means that job, whatever else begins like it.
        matches = [job for job in jobs if reference == job.id]
        matches = matches or [job for job in jobs if reference == job.spec.name]
        matches = matches or [job for job in jobs if job.id.startswith(reference)]
    if not matches:
        raise CommandFailed(
            Exit.NOT_FOUND, f"There is no job {reference} on {client.url}.", "`advisor jobs` lists them."
        )
    if len(matches) > 1:
        ids = ", ".join(job.id for job in matches[:5])
        raise CommandFailed(
            Exit.NOT_FOUND, f"{reference} may be any of {len(matches)} jobs: {ids}.", "Give more of the id."
        )
    return matches[0]


def all_jobs(client: Client) -> list[Job]:
    """Return the jobs of a server, newest first; the newest 2000 of very many."""
    jobs: list[Job] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = client.list_jobs(limit=_PAGE, cursor=cursor)
        jobs += page.items
        if (cursor := page.next_cursor) is None:
            break
    return sorted(jobs, key=lambda job: job.created_at, reverse=True)
