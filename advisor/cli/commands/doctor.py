"""`advisor doctor`: whether this machine has what tuning needs, and what to do where it has not."""

import os
from typing import Annotated

import typer
from rich.text import Text

from advisor.cli.commands.checks import Check, Status, check_all
from advisor.cli.exits import Exit
from advisor.cli.options import JsonOption, screen_of
from advisor.data_dir import data_dir_of

_MARKS = {Status.OK: ("ok  ", "green"), Status.WARN: ("note", "yellow"), Status.FAIL: ("FAIL", "bold red")}


def doctor(
    context: typer.Context,
    launcher: Annotated[str, typer.Option(help="The launcher that your command starts with.")] = "torchrun",
    as_json: JsonOption = False,
) -> None:
    """Check this machine: Python, torch, launcher, ports, isolation of trials, data directory, server."""
    screen = screen_of(context)
    checks = check_all(os.environ, data_dir_of(os.environ), launcher)
    if as_json:
        screen.print_json({"checks": checks})
    else:
        for check in checks:
            screen.show(_line(check))
    if any(check.status is Status.FAIL for check in checks):
        raise typer.Exit(Exit.INTERNAL)


def _line(check: Check) -> Text:
    mark, style = _MARKS[check.status]
    line = Text.assemble((mark, style), f"  {check.name}: {check.finding}")
    if check.remedy:
        line.append(f"\n      What to do: {check.remedy}")
    return line
