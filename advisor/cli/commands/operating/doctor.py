"""`advisor doctor`: whether this machine has what tuning needs, and what to do where it has not."""

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.text import Text

from advisor.cli.commands.operating.checks import Check, Status, check_all
from advisor.cli.exits import Exit
from advisor.cli.options import JsonOption, screen_of
from advisor.data_dir import data_dir_of
from advisor.local.agents import AGENT_COMMAND, training_environment

_MARKS = {Status.OK: ("ok  ", "green"), Status.WARN: ("note", "yellow"), Status.FAIL: ("FAIL", "bold red")}


def doctor(
    context: typer.Context,
    launcher: Annotated[str, typer.Option(help="The launcher that your command starts with.")] = "torchrun",
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Check the runtime on this machine's GPUs instead.")
    ] = False,
    checks: Annotated[
        str, typer.Option(metavar="NAME,…", help="With --gpu: these checks only, e.g. timing,memory.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --gpu: write what was found as Markdown.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check this machine: Python, torch, launcher, ports, isolation of trials, data directory, server.

    Exit codes with --gpu: 0 nothing failed · 1 something did · 2 usage · 3 there is no GPU · 130 stopped.
    """
    if gpu:
        _check_gpus(checks, output)
    screen = screen_of(context)
    found = check_all(os.environ, data_dir_of(os.environ), launcher)
    if as_json:
        screen.print_json({"checks": found})
    else:
        for check in found:
            screen.show(_line(check))
    if any(check.status is Status.FAIL for check in found):
        raise typer.Exit(Exit.INTERNAL)


def _check_gpus(checks: str, output: Path | None) -> NoReturn:
    """The agent does it, in this command's place."""
    sys.stdout.flush()
    options = ["--checks", checks] if checks else []
    options += ["--output", str(output)] if output else []
    words = [*AGENT_COMMAND, "doctor", "--gpu", *options]
    os.execve(words[0], words, training_environment(os.environ))  # noqa: S606 - our own Python, never a shell


def _line(check: Check) -> Text:
    mark, style = _MARKS[check.status]
    line = Text.assemble((mark, style), f"  {check.name}: {check.finding}")
    if check.remedy:
        line.append(f"\n      What to do: {check.remedy}")
    return line
