"""`advisor login` and `advisor logout`: which server commands talk to, without a variable in every shell."""

import os
import sys
from typing import Annotated

import typer

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.login import forget_login, keep_login
from advisor.cli.options import screen_of
from advisor.client import Client
from advisor.protocol.views import JobQuery


def login(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="The server's address, such as https://advisor.example.")],
) -> None:
    """Sign in to a server: asks for a token, or reads it from a pipe, and remembers both once the server takes it.

    ADVISOR_URL and ADVISOR_TOKEN win over what is remembered. An empty ADVISOR_URL means this machine.
    """
    screen = screen_of(context)
    if not url.startswith(("http://", "https://")):
        raise CommandFailed(
            Exit.USAGE, f"{url} is no address of a server.", f"Write it whole: advisor login https://{url}"
        )
    piped = not sys.stdin.isatty()
    token = (sys.stdin.readline() if piped else typer.prompt("Token", hide_input=True, err=True)).strip()
    if not token:
        raise CommandFailed(
            Exit.USAGE,
            "No token was given.",
            "The person who runs the server makes one with `advisor token create`.",
        )
    with Client(url, token, patience_s=0) as client:
        client.list_jobs(JobQuery(limit=1))
    path = keep_login(os.environ, url.rstrip("/"), token)
    screen.tell(f"Signed in to {url}. It is remembered in {path}; `advisor logout` forgets it.")


def logout(context: typer.Context) -> None:
    """Forget the server that was signed in to. The token stays valid: `advisor token revoke` ends it."""
    known = forget_login(os.environ)
    screen_of(context).tell("Forgotten." if known else "There was nothing to forget.")
