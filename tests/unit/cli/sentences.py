"""The catalogue of sentences: every literal of the product's modules that is no docstring."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
PLACE = "PLACE"
"""Stands where something is filled in."""


def list_sentences(path: Path) -> Iterator[tuple[int, str]]:
    """The literals of a module but its docstrings; what is filled in stands as `PLACE`."""
    tree = ast.parse(path.read_text())
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            parts = [part.value if isinstance(part, ast.Constant) else PLACE for part in node.values]
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


@cache
def list_all_sentences() -> list[tuple[str, str]]:
    """Every sentence of server, command line and agent, with the place where it stands."""
    return [
        (f"{path.relative_to(ROOT).as_posix()}:{line}", sentence)
        for package in ("advisor", "agent")
        for path in sorted((ROOT / package).rglob("*.py"))
        if "migrations" not in path.parts
        for line, sentence in list_sentences(path)
    ]
