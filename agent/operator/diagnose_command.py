"""`advisor diagnose`: starts a command once as it stands, without a server, and says where its time goes."""

import json
import os
import shlex
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

from advisor.protocol.answers.diagnosed import (
    Diagnosed,
    describe_diagnosed,
    diagnose_launch,
    say_seen,
    write_markdown,
)
from advisor.protocol.answers.limits import compare_with_one
from advisor.protocol.answers.trace import build_trace
from advisor.protocol.culprit import excerpt_failure
from advisor.protocol.nodes.load import say_load_here
from advisor.protocol.training.launch_command import UnlaunchableCommand, parse_command
from advisor.protocol.training.workload import Injection, Workload
from agent.devices.gpus import open_gpus
from agent.errors import AgentError, BadConfiguration
from agent.operator.config import CONFIG_VARIABLE, describe_error, read_config
from agent.operator.preview import describe_preview, preview_launch
from agent.operator.rehearsal import Rehearsed, rehearse
from agent.trust.allowance import Allowance

_NOT_MEASURED, _USAGE, _INVALID = 1, 2, 3
_STOPPED = "{} ended it, and its processes, before enough steps were timed."


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
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write all ranks' steps on one timeline, for Perfetto."),
    ] = None,
    injection: Annotated[
        Injection, typer.Option(help="How the runtime gets into the training processes.")
    ] = Injection.AUTO,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable for the command; repeatable.")
    ] = None,
    protect: Annotated[
        list[Path] | None, typer.Option(help="Another directory that must not be changed; repeatable.")
    ] = None,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Also launch one rank, and say what several bring against it.")
    ] = False,
    samples_per_step: Annotated[
        int | None,
        typer.Option(min=1, help="Samples one process takes per forward pass.", show_default="observed"),
    ] = None,
    price_per_hour: Annotated[
        float | None,
        typer.Option(min=0, help="What all that it runs on costs an hour: says what a million samples cost."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            envvar=CONFIG_VARIABLE, help="An agent's configuration: its table [allow] says what may run."
        ),
    ] = None,
) -> None:
    """Say where a training's time goes, in under a minute: no server, nothing tuned, no file of yours changed.

    advisor diagnose -- torchrun --nproc-per-node 2 train.py

    The command is started once as it stands, some steps are timed, and it is ended. Exit codes: 0 ok · 1 nothing could
    be measured · 2 usage · 3 the command cannot be started.
    """
    _log_warnings_to_stderr()
    if trace is not None and not trace.absolute().parent.is_dir():
        typer.echo(
            f"--trace {trace}: there is no folder {trace.absolute().parent}. Name a file in one.", err=True
        )
        raise typer.Exit(_USAGE)
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
            allow = Allowance() if config is None else _read_rules(config)
            one = _take_one_rank(command) if scaling else None
            seen = _run(workload, work_dir, allow)
            found = _diagnose(seen, command, as_json)
            found = found.model_copy(update={"power_w": seen.power_w, "price_per_hour": price_per_hour})
            if one is not None:
                found = _compare(found, workload, one, work_dir, allow)
            _tell(found, command, as_json, markdown)
            if trace is not None and seen.result is not None:
                trace.write_text(json.dumps(build_trace(seen.result.timelines)))
                typer.echo(f"Wrote {trace}: open it at ui.perfetto.dev or chrome://tracing.", err=True)
    except AgentError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(_INVALID) from error
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)


def _read_rules(path: Path) -> Allowance:
    """What an operator lets be started; raises BadConfiguration where that is what somebody signed."""
    config = read_config(path)
    if config.require_signed is not None:
        raise BadConfiguration(
            f"{path} lets this machine start signed jobs only (require_signed), and nothing signs a command that is "
            "diagnosed. Ask its operator to diagnose it."
        )
    try:
        return config.allow.to_allowance()
    except ValidationError as error:
        raise BadConfiguration(f"{path}: {describe_error(error)}") from error


def _run(workload: Workload, work_dir: Path, allow: Allowance) -> Rehearsed:
    for warning in preview_launch(workload, os.environ, work_dir).warnings:
        typer.echo(f"Note: {warning}", err=True)
    if load := say_load_here():
        typer.echo(f"Note: {load}", err=True)
    typer.echo(f"Running {shlex.join(workload.command)} once as it stands; Ctrl-C ends it …", err=True)
    signals: list[int] = []

    def listen(stop: Callable[[], None]) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: note(number, stop))

    def note(number: int, stop: Callable[[], None]) -> None:
        signals.append(number)
        stop()

    gpus = open_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ)
    try:
        seen = rehearse(workload, dict(os.environ), work_dir, gpus, listen, allow)
    finally:
        gpus.close()
    if not signals:
        return seen
    ended = seen.ended.model_copy(update={"reason": _STOPPED.format(signal.Signals(signals[0]).name)})
    return seen.model_copy(update={"ended": ended})


def _take_one_rank(command: list[str]) -> tuple[str, ...]:
    """Return the words that start one rank. Raises BadConfiguration where the command has no such words."""
    try:
        launch = parse_command(command)
    except UnlaunchableCommand as error:
        raise BadConfiguration(
            f"--scaling starts one rank by torchrun's --nproc-per-node. {error}"
        ) from error
    if not launch.is_torchrun:
        raise BadConfiguration(
            f"--scaling starts one rank by torchrun's --nproc-per-node, and {command[0]} has no such option: give the "
            "command as torchrun --nproc-per-node N script.py."
        )
    return launch.with_one_rank()


def _compare(
    found: Diagnosed, workload: Workload, one: tuple[str, ...], work_dir: Path, allow: Allowance
) -> Diagnosed:
    """The same with one rank in as many threads, which is launched for it."""
    if found.ranks == 1:
        raise BadConfiguration("--scaling compares several ranks with one, and the command starts one.")
    threads = {"OMP_NUM_THREADS": str(found.threads), **workload.environment}
    alone = workload.model_copy(update={"command": one, "environment": threads})
    seen = _run(alone, work_dir, allow)
    if seen.result is None or seen.facts is None or seen.node is None:
        typer.echo(f"Note: one rank by itself could not be measured: {seen.ended.reason}", err=True)
        return found
    by_itself = diagnose_launch(seen.result, seen.facts, seen.node, one)
    scaling = compare_with_one(found.ranks, found.rate, found.phases, by_itself.rate, by_itself.phases)
    return found.model_copy(update={"scaling": scaling})


def _diagnose(seen: Rehearsed, command: list[str], as_json: bool) -> Diagnosed:
    if seen.result is None or seen.facts is None or seen.node is None:
        told = {"measured": False, "reason": seen.ended.reason}
        typer.echo(json.dumps(told) if as_json else f"Nothing was measured: {seen.ended.reason}")
        if seen.facts is not None and not as_json:
            typer.echo(say_seen(seen.facts))
        if last := excerpt_failure(seen.ended.log_tail):
            typer.echo(last, err=True)
        raise typer.Exit(_NOT_MEASURED)
    return diagnose_launch(seen.result, seen.facts, seen.node, command)


def _tell(found: Diagnosed, command: list[str], as_json: bool, markdown: bool) -> None:
    if as_json:
        typer.echo(found.model_dump_json())
    else:
        typer.echo(write_markdown(found) if markdown else "\n".join(describe_diagnosed(found, command)))


def _log_warnings_to_stderr() -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("warning"),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
