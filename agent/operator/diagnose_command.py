"""`advisor diagnose`: starts a command once as it stands, without a server, and says where its time goes."""

import json
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

from advisor.protocol.answers.diagnosed import describe_diagnosed, diagnose_launch, write_markdown
from advisor.protocol.culprit import excerpt_failure
from advisor.protocol.nodes.load import say_load_here
from advisor.protocol.training.workload import Injection, Workload
from agent.devices.gpus import open_gpus
from agent.errors import AgentError
from agent.operator.config import describe_error
from agent.operator.preview import describe_preview, preview_launch
from agent.operator.rehearsal import Rehearsed, rehearse

_NOT_MEASURED, _USAGE, _INVALID = 1, 2, 3


def diagnose(
    command: Annotated[
        list[str], typer.Argument(metavar="[--] COMMAND…", help="A launch command, exactly as you type it.")
    ],
    show: Annotated[
        bool, typer.Option("--show", help="Show what would be started, word for word, and start nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the result as a few lines of Markdown.")
    ] = False,
    injection: Annotated[
        Injection, typer.Option(help="How the runtime gets into the training processes.")
    ] = Injection.AUTO,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable for the command; repeatable.")
    ] = None,
    protect: Annotated[
        list[Path] | None, typer.Option(help="Another directory that must not be changed; repeatable.")
    ] = None,
    samples_per_step: Annotated[
        int | None,
        typer.Option(min=1, help="Samples one process takes per forward pass.", show_default="observed"),
    ] = None,
) -> None:
    """Say where a training's time goes, in under a minute: no server, nothing tuned, no file of yours changed.

    advisor diagnose -- torchrun --nproc-per-node 2 train.py

    The command is started once as it stands, some steps are timed, and it is ended. Exit codes: 0 ok · 1 nothing could
    be measured · 2 usage · 3 the command cannot be started.
    """
    _log_warnings_to_stderr()
    try:
        workload = Workload(
            command=tuple(command),
            working_dir=str(Path.cwd()),
            environment=dict(variable.partition("=")[::2] for variable in env or ()),
            injection=injection,
            protect=tuple(str(path.expanduser().absolute()) for path in protect or ()),
            samples_per_step=samples_per_step,
        )
    except ValidationError as error:
        typer.echo(describe_error(error), err=True)
        raise typer.Exit(_USAGE) from error
    work_dir = Path(tempfile.mkdtemp(prefix="advisor-diagnose-"))
    try:
        if show:
            preview = preview_launch(workload, os.environ, work_dir)
            typer.echo(preview.model_dump_json() if as_json else describe_preview(preview))
        else:
            _tell(_run(workload, work_dir), command, as_json, markdown)
    except AgentError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(_INVALID) from error
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)


def _run(workload: Workload, work_dir: Path) -> Rehearsed:
    for warning in preview_launch(workload, os.environ, work_dir).warnings:
        typer.echo(f"Note: {warning}", err=True)
    if load := say_load_here():
        typer.echo(f"Note: {load}", err=True)
    typer.echo("Running it once as it stands; Ctrl-C ends it …", err=True)
    gpus = open_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ)
    try:
        return rehearse(workload, dict(os.environ), work_dir, gpus, _stop_on_signals)
    finally:
        gpus.close()


def _tell(seen: Rehearsed, command: list[str], as_json: bool, markdown: bool) -> None:
    if seen.result is None or seen.facts is None or seen.node is None:
        told = {"measured": False, "reason": seen.ended.reason}
        typer.echo(json.dumps(told) if as_json else f"Nothing was measured: {seen.ended.reason}")
        typer.echo(excerpt_failure(seen.ended.log_tail), err=True)
        raise typer.Exit(_NOT_MEASURED)
    found = diagnose_launch(seen.result, seen.facts, seen.node, command)
    if as_json:
        typer.echo(found.model_dump_json())
    else:
        typer.echo(write_markdown(found) if markdown else "\n".join(describe_diagnosed(found, command)))


def _stop_on_signals(stop: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())


def _log_warnings_to_stderr() -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("warning"),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
