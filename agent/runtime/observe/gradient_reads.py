"""Where a script's own code looks at gradients: between two micro-batches it would see what its rank alone has."""

from __future__ import annotations

import ast
import os
from typing import Any, Iterable, List, Mapping

from .sources import list_own_sources

_NO_VALUES = ("zero_", "detach_", "requires_grad_")
"""Calls on a gradient that tell nothing of its numbers."""
_FUNCTIONS = ("autograd", "func", "jax")
"""What else has a `grad`: a function of that name."""


def find_gradient_reads(modules: Mapping[str, Any]) -> List[str]:
    """`train.py:88` for every line of the script's own files that reads a `.grad`, whether it ever runs or not.

    Setting, clearing and asking whether there is one are no reads, and torch's own clipping is none of the script's.
    """
    found: List[str] = []
    for path in list_own_sources(modules):
        try:
            with open(path, encoding="utf-8") as file:
                tree = ast.parse(file.read())
        except (OSError, SyntaxError, ValueError):
            continue
        found += [f"{os.path.relpath(path)}:{line}" for line in sorted(set(_find_reads(tree)))]
    return found


def _find_reads(tree: ast.AST) -> Iterable[int]:
    for parent in ast.walk(tree):
        if isinstance(parent, ast.Compare) and all(isinstance(o, (ast.Is, ast.IsNot)) for o in parent.ops):
            continue
        if isinstance(parent, ast.Attribute) and parent.attr in _NO_VALUES:
            continue
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.Attribute) and node.attr == "grad" and isinstance(node.ctx, ast.Load):
                owner = node.value
                name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                if name not in _FUNCTIONS:
                    yield node.lineno
