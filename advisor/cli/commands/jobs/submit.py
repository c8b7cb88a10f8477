"""`advisor submit`: a job described in a file, for a server that outlives the command."""

import os
import uuid
from pathlib import Path
from typing import Annotated

import typer

from advisor.cli.connection import connect
from advisor.cli.exits import exit_of_state
from advisor.cli.options import (
    ALLOW_HELP,
    DetachOption,
    DryRunOption,
    GangsOption,
    JsonOption,
    LabelOption,
    MaxDeviceHoursOption,
    MinutesOption,
    NeedsOption,
    NodesOption,
    PoolOption,
    PriorityOption,
    SignForOption,
    SignOption,
    TrialsOption,
    ValuesOption,
    WebhookOption,
    WithinOption,
    screen_of,
    sign_as_asked,
)
from advisor.cli.tuning.follow import watch_detachably
from advisor.cli.tuning.job_spec import FileOverrides, Where, spec_from_file
from advisor.cli.views.plan_view import describe_plan
from advisor.protocol.knobs.knob import Effect


def submit(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="JOB.YAML", help="A job's fields.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND…]", help="Takes the place of the file's command."),
    ] = None,
    dry_run: DryRunOption = False,
    detach: DetachOption = False,
    nodes: NodesOption = None,
    allow: Annotated[
        Effect | None, typer.Option(help=ALLOW_HELP, show_default="the file's, or exact")
    ] = None,
    trials: TrialsOption = None,
    minutes: MinutesOption = None,
    gangs: GangsOption = None,
    values: ValuesOption = None,
    max_device_hours: MaxDeviceHoursOption = None,
    webhook: WebhookOption = None,
    label: LabelOption = None,
    priority: PriorityOption = None,
    pool: PoolOption = None,
    needs: NeedsOption = None,
    within: WithinOption = None,
    sign: SignOption = None,
    sign_for: SignForOption = "7d",  # type: ignore[assignment]
    as_json: JsonOption = False,
) -> None:
    """Submit a job from a YAML file and watch it."""
    screen = screen_of(context)
    overrides = FileOverrides(
        gangs=gangs,
        device_hours=max_device_hours,
        nodes=nodes,
        allow=allow,
        trials=trials,
        minutes=minutes,
        values=values or (),
        webhooks=webhook or (),
        labels=label or (),
        where=Where(priority, pool, needs or (), within),
    )
    spec = sign_as_asked(spec_from_file(path, command or (), overrides), sign, sign_for)
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
