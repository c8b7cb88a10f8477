"""`advisor workloads`: the built-in trainings, and how one of them becomes a launch command."""

import ast
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import typer

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.options import JsonOption, screen_of

BUILT_IN = ("resnet50", "vgg16", "encoder", "decoder", "wide_and_deep")
RANKS = 2
"""Ranks on each node where none are given: what a laptop and the smallest GPU server can hold."""


def list_workloads(
    context: typer.Context,
    as_json: JsonOption = False,
) -> None:
    """List the built-in trainings: ordinary scripts with synthetic data, to try a cluster or a network with.

    Start one with: advisor tune --workload resnet50
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    screen = screen_of(context)
    rows = [(name, _purpose_of(path), path) for name in BUILT_IN for path in [find_script(name)]]
    if as_json:
        items = [{"name": name, "purpose": purpose, "script": str(path)} for name, purpose, path in rows]
        screen.print_json({"items": items})
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    table.add_column("workload", no_wrap=True)
    table.add_column("what it trains", overflow="fold")
    table.add_column("script", overflow="fold", style="dim")
    for name, purpose, path in rows:
        table.add_row(Text(name, style="bold"), purpose, str(path))
    screen.show(table)
    screen.tell(
        f"Start one: advisor tune --workload {BUILT_IN[0]} -- --size full   (its options: python SCRIPT --help)"
    )


def launch_built_in(name: str, ranks: int | None, arguments: Sequence[str]) -> list[str]:
    """Return the launch command of a built-in training with `ranks` ranks on each node.

    Raises `CommandFailed` (invalid spec) when there is none of that name.
    """
    if name not in BUILT_IN:
        raise CommandFailed(
            Exit.INVALID_SPEC,
            f"There is no built-in workload {name!r}.",
            f"Choose one of {', '.join(BUILT_IN)}; a script of your own goes after `--`, with its launcher.",
        )
    return ["torchrun", "--nproc-per-node", str(ranks or RANKS), str(find_script(name)), *arguments]


def find_script(name: str) -> Path:
    """Return the script of a built-in training, as this installation holds it.

    The agent's package is found and not imported: it may need what this environment has not.
    """
    found = importlib.util.find_spec("agent")
    if found is None or found.origin is None:
        raise CommandFailed(
            Exit.INTERNAL,
            "The built-in workloads are not installed: the package `agent` is missing.",
            "Install it: pip install 'fleet-advisor[agent]'.",
        )
    return Path(found.origin).parent / "workloads" / f"{name}.py"


def _purpose_of(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0].partition(":")[0]
