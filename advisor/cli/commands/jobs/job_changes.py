"""`advisor pause`, `resume`, `prioritise`, `repeat`, `extend`, `clone`, `archive` and `delete`: changing a job."""

import os
import uuid
from typing import Annotated

import typer

from advisor.cli.connection import look_up, resolve_job
from advisor.cli.moments import read_minutes
from advisor.cli.options import JobArgument, JsonOption, screen_of
from advisor.protocol.asked.jobs import Continuation, Job, Prioritisation, Priority


def pause(context: typer.Context, job: JobArgument, as_json: JsonOption = False) -> None:
    """Let a job start nothing new: what it is measuring is measured to its end, and its agents are free then."""
    with look_up(os.environ) as client:
        paused = client.pause_job(resolve_job(client, job).id)
    _tell(context, paused, as_json)


def resume(context: typer.Context, job: JobArgument, as_json: JsonOption = False) -> None:
    """Let a paused job go on where it stood."""
    with look_up(os.environ) as client:
        resumed = client.resume_job(resolve_job(client, job).id)
    _tell(context, resumed, as_json)


def prioritise(
    context: typer.Context,
    job: JobArgument,
    priority: Annotated[
        Priority, typer.Argument(help="Its priority from now on; administrators also give high.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Let a job come earlier or later among those that wait; what it is measuring goes on."""
    with look_up(os.environ) as client:
        changed = client.prioritise_job(resolve_job(client, job).id, Prioritisation(priority=priority))
    if as_json:
        screen_of(context).print_json(changed)
    else:
        screen_of(context).show(f"{changed.spec.name or changed.id} has priority {changed.spec.priority}.")


def repeat(
    context: typer.Context,
    job: JobArgument,
    trial: Annotated[int, typer.Argument(min=0, help="The trial's number.")],
    as_json: JsonOption = False,
) -> None:
    """Let a strategy that a job's search has measured race the baseline once more, while the search goes on."""
    with look_up(os.environ) as client:
        asked = client.repeat_trial(resolve_job(client, job).id, trial)
    if as_json:
        screen_of(context).print_json(asked)
    else:
        name = asked.spec.name or asked.id
        screen_of(context).show(f"{name} measures trial {trial} again as soon as its search starts a race.")


def extend(
    context: typer.Context,
    job: JobArgument,
    minutes: Annotated[float, typer.Option(parser=read_minutes, metavar="MINUTES", help="Wall time to add.")],
    trials: Annotated[int, typer.Option(min=0, max=500, help="Strategies to add.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Give a job that has ended more budget, and return at once; `advisor tune --continue` also watches it."""
    more = Continuation(more_seconds=60.0 * minutes, more_trials=trials)
    with look_up(os.environ) as client:
        extended = client.extend_job(resolve_job(client, job).id, more, uuid.uuid4().hex)
    _tell(context, extended, as_json)


def clone(context: typer.Context, job: JobArgument, as_json: JsonOption = False) -> None:
    """Submit a job's specification again, as a new job of yours; prints its id."""
    screen = screen_of(context)
    with look_up(os.environ) as client:
        made = client.clone_job(resolve_job(client, job).id, uuid.uuid4().hex)
    if as_json:
        screen.print_json(made)
    else:
        screen.print_text(made.id)
        screen.tell(f"Watch it: advisor watch {made.id}")


def archive(
    context: typer.Context,
    job: JobArgument,
    undo: Annotated[bool, typer.Option("--undo", help="Take it back into the list.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Leave a job that has ended out of `advisor jobs`; --archived still lists it."""
    with look_up(os.environ) as client:
        found = resolve_job(client, job)
        changed = client.unarchive_job(found.id) if undo else client.archive_job(found.id)
    if as_json:
        screen_of(context).print_json(changed)
    else:
        told = "is archived" if changed.archived_at else "is listed again"
        screen_of(context).show(f"{changed.spec.name or changed.id} {told}.")


def delete(
    context: typer.Context,
    job: JobArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a job that has ended, with all that was measured for it. There is no way back."""
    with look_up(os.environ) as client:
        found = resolve_job(client, job)
        name = f"{found.spec.name} ({found.id})"
        if not yes:
            typer.confirm(f"Delete {name} and all that was measured for it?", abort=True, err=True)
        client.delete_job(found.id)
    screen_of(context).show(f"{name} is deleted.")


def _tell(context: typer.Context, job: Job, as_json: bool) -> None:
    if as_json:
        screen_of(context).print_json(job)
    else:
        screen_of(context).show(f"{job.spec.name or job.id}: {job.state}. {job.state_reason}".strip())
