"""What a torch defines, read from its sources; nothing of it runs."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from agent.runtime import private_torch


def read_version(version: str) -> tuple[int, ...]:
    """The first two numbers."""
    return tuple(map(int, version.split("+")[0].split(".")[:2]))


@cache
def parse(sources: Path, module: str) -> ast.Module | None:
    """A module's syntax; of a compiled one that of its stub."""
    place = Path(sources, *module.split("."))
    for path in (
        place / "__init__.py",
        place.with_suffix(".py"),
        place / "__init__.pyi",
        place.with_suffix(".pyi"),
    ):
        if path.exists():
            return ast.parse(path.read_text())
    return None


def is_defined(sources: Path, home: str, name: str) -> bool:
    """Whether a `module` or `module:Class` defines, imports or sets the name."""
    module, _, kind = home.partition(":")
    tree = parse(sources, module)
    if tree is None:
        return False
    scopes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == kind]
    return any(name in _list_defined(scope) for scope in (scopes if kind else [tree]))


def find_wrong_declarations(sources: Path, version: str) -> list[str]:
    """The private names that this torch has and, as declared, should not have, or lacks and should have."""
    wrong = []
    for symbol in (symbol for symbol in private_torch.ALL if symbol.is_listed):
        is_known = symbol.since <= read_version(version) <= symbol.until
        if is_known != any(is_defined(sources, home, symbol.name) for home in symbol.homes.split("|")):
            wrong.append(f"{symbol.homes} {symbol.name}: {'missing' if is_known else 'there already'}")
    return wrong


def _list_defined(scope: ast.AST) -> Iterator[str]:
    """Names that are defined, imported or set, also on other objects."""
    for node in ast.walk(scope):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (name.asname or name.name for name in node.names)
