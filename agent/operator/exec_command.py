"""`advisor-agent exec`: shows what an agent would start for a command; with --run starts and measures it once."""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import structlog
import typer
from pydantic import ValidationError

from advisor.protocol.culprit import excerpt_failure
from advisor.protocol.training.workload import Injection, Workload
from agent.devices.gpus import open_gpus
from agent.errors import AgentError
from agent.operator.config import describe_error
from agent.operator.preview import describe_preview, preview_launch
from agent.operator.rehearsal import describe_rehearsal, rehearse

_NOT_MEASURED, _USAGE, _INVALID = 1, 2, 3


def execute(
    command: Annotated[
        list[str], typer.Argument(metavar="[--] COMMAND…", help="A launch command, exactly as you type it.")
    ],
    run: Annotated[
        bool,
        typer.Option("--run", help="Start it once, measure it as it stands, and say which knobs it offers."),
    ] = False,
    injection: Annotated[
        Injection, typer.Option(help="How the runtime gets into the training processes.")
    ] = Injection.AUTO,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable of the job's; repeatable.")
    ] = None,
    protect: Annotated[
        list[Path] | None, typer.Option(help="Another directory that must not be changed; repeatable.")
    ] = None,
    samples_per_step: Annotated[
        int | None,
        typer.Option(min=1, help="Samples one process takes per forward pass.", show_default="observed"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs.")] = False,
) -> None:
    """Show exactly what an agent would start for a command on this machine: nothing is started without --run.

    Exit codes: 0 ok · 1 nothing could be measured · 2 usage · 3 the command cannot be started.
    """
    _log_warnings_to_stderr()
    variables = dict(variable.partition("=")[::2] for variable in env or ())
    try:
        workload = Workload(
            command=tuple(command),
            working_dir=str(Path.cwd()),
            environment=variables,
            injection=injection,
            protect=tuple(str(path.expanduser().absolute()) for path in protect or ()),
            samples_per_step=samples_per_step,
        )
    except ValidationError as error:
        typer.echo(describe_error(error), err=True)
        raise typer.Exit(_USAGE) from error
    work_dir = Path(tempfile.mkdtemp(prefix="advisor-exec-"))
    try:
        _show_and_run(workload, work_dir, run, as_json)
    except AgentError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(_INVALID) from error
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)


def _show_and_run(workload: Workload, work_dir: Path, run: bool, as_json: bool) -> None:
    preview = preview_launch(workload, os.environ, work_dir)
    typer.echo(preview.model_dump_json() if as_json else describe_preview(preview))
    if not run:
        return
    sys.stdout.flush()
    typer.echo("Running it once as it stands; Ctrl-C ends it …", err=True)
    gpus = open_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ)
    try:
        rehearsed = rehearse(workload, dict(os.environ), work_dir, gpus, _stop_on_signals)
    finally:
        gpus.close()
    typer.echo(rehearsed.model_dump_json() if as_json else describe_rehearsal(rehearsed))
    if rehearsed.result is None:
        typer.echo(excerpt_failure(rehearsed.ended.log_tail), err=True)
        raise typer.Exit(_NOT_MEASURED)


def _stop_on_signals(stop: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())


def _log_warnings_to_stderr() -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("warning"),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
