"""`advisor logs`: what the training processes of a job wrote."""

import os
import time
from typing import TYPE_CHECKING, Annotated

import typer

from advisor.cli.connection import look_at, resolve_job
from advisor.cli.exits import Exit
from advisor.cli.interrupts import interruptible
from advisor.cli.options import JobArgument, JsonOption, screen_of
from advisor.cli.screen import Screen

if TYPE_CHECKING:
    from advisor.cli.connection import Reader

_POLL_S = 1.0


def logs(
    context: typer.Context,
    job: JobArgument,
    rank: Annotated[
        int | None,
        typer.Option("--rank", min=0, help="Only what this rank wrote, without the rank before each line."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is over.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print what the training processes wrote. With --json: one chunk a line."""
    screen = screen_of(context)
    try:
        with interruptible(), look_at(os.environ) as client:
            _print_logs(client, resolve_job(client, job).id, screen, follow, as_json, rank)
    except KeyboardInterrupt:
        raise typer.Exit(Exit.INTERRUPTED) from None


def _print_logs(
    client: "Reader", job_id: str, screen: Screen, follow: bool, as_json: bool, rank: int | None
) -> None:
    after = 0
    while True:
        # The state first: when it is final, the page that follows is complete.
        over = not follow or client.job(job_id).state.is_final
        page = client.logs(job_id, after)
        for found in page.items:
            chunk = found if rank is None else found.model_copy(update={"text": keep_rank(found.text, rank)})
            if not chunk.text:
                continue
            if as_json:
                screen.print_line(chunk)
            else:
                screen.print_list(chunk.text)
        after = max(after, page.next_after)
        if not page.items:
            if over:
                return
            time.sleep(_POLL_S)


def keep_rank(text: str, rank: int) -> str:
    """Return the lines that this rank wrote, as it wrote them; lines that no rank wrote are left out."""
    tag = f"[rank {rank}] "
    return "".join(line.removeprefix(tag) for line in text.splitlines(keepends=True) if line.startswith(tag))
