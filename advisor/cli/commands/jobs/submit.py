"""`advisor submit`: a job described in a file, for a server that outlives the command."""

import os
import uuid
from pathlib import Path
from typing import Annotated

import typer

from advisor.cli.connection import connect
from advisor.cli.exits import exit_of_state
from advisor.cli.options import (
    DetachOption,
    DryRunOption,
    JsonOption,
    QuietOption,
    SignForOption,
    SignOption,
    screen_of,
    sign_as_asked,
)
from advisor.cli.tuning.filled_options import takes
from advisor.cli.tuning.follow import watch_detachably
from advisor.cli.tuning.job_options import JobOptions
from advisor.cli.tuning.job_spec import spec_from_file
from advisor.cli.views.plan_view import describe_plan


@takes(options=JobOptions)
def submit(
    context: typer.Context,
    options: JobOptions,
    path: Annotated[Path, typer.Argument(metavar="JOB.YAML", help="A job's fields.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND…]", help="Takes the place of the file's command."),
    ] = None,
    dry_run: DryRunOption = False,
    detach: DetachOption = False,
    sign: SignOption = None,
    sign_for: SignForOption = "7d",  # type: ignore[assignment]
    quiet: QuietOption = False,  # noqa: ARG001 - its callback tells the screen
    as_json: JsonOption = False,
) -> None:
    """Submit a job from a YAML file and watch it."""
    screen = screen_of(context)
    spec = sign_as_asked(spec_from_file(path, command or (), options), sign, sign_for)
    with connect(os.environ) as client:
        if dry_run:
            preview = client.preview_job(spec)
            if as_json:
                screen.print_json(preview)
            else:
                screen.show(f"{path} is a valid job. Nothing was submitted.")
                screen.show(describe_plan(preview.plan))
            return
        job = client.submit_job(spec, uuid.uuid4().hex)
        if detach:
            if as_json:
                screen.print_json(job)
            else:
                screen.print_text(job.id)
                screen.tell(f"Watch it: advisor watch {job.id}")
            return
        screen.tell(f"Job {job.id} is submitted.")
        ended = watch_detachably(client, job, screen, events_are_the_result=as_json)
    if not as_json:
        screen.show(f"{ended.spec.name or ended.id}: {ended.state}. {ended.state_reason}")
    raise typer.Exit(exit_of_state(ended.state))
