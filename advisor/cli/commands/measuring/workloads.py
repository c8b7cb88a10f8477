"""`advisor workloads`: the built-in trainings."""

import ast
from pathlib import Path

import typer

from advisor.cli.options import JsonOption, screen_of
from advisor.cli.tuning.built_in import BUILT_IN, find_script


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
        items = [
            {
                "name": name,
                "purpose": purpose,
                "script": str(path),
                "start": f"advisor tune --workload {name}",
            }
            for name, purpose, path in rows
        ]
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


def _purpose_of(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0].partition(":")[0]
