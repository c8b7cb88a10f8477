"""Expressions over knobs: `micro * accumulate == 8`, `2 * micro`; read by a small grammar and never by `eval`."""

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from textwrap import shorten
from typing import Any

from advisor.protocol.base import Value

FACTS = ("world_size", "nodes", "gpus_per_node", "gpu_memory_gib")
"""What a requirement may name besides knobs: they are known once the script has run. `gpu_memory_gib` is the smallest
GPU's, and 0 without any."""
_LONGEST = 300
LARGEST = 1e15
"""Of the numbers that are calculated with."""
_BINARY: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: Mapping[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, several: value in several,
    ast.NotIn: lambda value, several: value not in several,
}
_WHAT = "use knobs, numbers, 'words', + - * / // %, comparisons, in (…), and, or, not"


@lru_cache(maxsize=512)
def _parse(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise ValueError(f"it has {len(text)} characters, and at most {_LONGEST} are read")
    try:
        expression = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"it cannot be read ({getattr(error, 'msg', error)}); {_WHAT}") from None
    for node in ast.walk(expression):
        known = (
            ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.Name, ast.Load, ast.Tuple, ast.List, ast.And, ast.Or,
            ast.Not, ast.USub, *_BINARY, *_COMPARE,
        )  # fmt: skip
        is_plain = isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float | str)
        if not is_plain and not isinstance(node, known):
            raise ValueError(f"{_name(node)} is not understood; {_WHAT}")
    return expression


def _name(node: ast.AST) -> str:
    """Operators have no text of their own: `Pow`."""
    return repr(ast.unparse(node)) if isinstance(node, ast.expr) else type(node).__name__


def list_names(text: str) -> tuple[str, ...]:
    """Return the names in an expression, in order; raises ValueError with a sentence where it cannot be read."""
    names = (node.id for node in ast.walk(_parse(text)) if isinstance(node, ast.Name))
    return tuple(dict.fromkeys(names))


def evaluate(text: str, values: Mapping[str, Value]) -> Any:
    """Return what an expression comes to; raises ValueError with a sentence (a name without a value, a division by 0).

    The work is bounded: there are no calls, no powers and no loops, and numbers stay below 1e15.
    """
    try:
        return _evaluate(_parse(text), values)
    except ZeroDivisionError:
        raise ValueError(f"{text}: it divides by zero") from None
    except TypeError:
        raise ValueError(f"{text}: it compares or adds a number and a word") from None


def holds(text: str, values: Mapping[str, Value]) -> bool:
    """Whether a requirement holds; what cannot be told of these values does not."""
    try:
        return bool(evaluate(text, values))
    except ValueError:
        return False


def _evaluate(node: ast.AST, values: Mapping[str, Value]) -> Any:
    match node:
        case ast.Constant():
            return _bound(node, node.value)
        case ast.Name():
            if node.id not in values:
                raise ValueError(f"{node.id} has no value")
            return values[node.id]
        case ast.Tuple() | ast.List():
            return [_evaluate(item, values) for item in node.elts]
        case ast.UnaryOp():
            value = _evaluate(node.operand, values)
            return not value if isinstance(node.op, ast.Not) else -value
        case ast.BoolOp():
            parts = (_evaluate(part, values) for part in node.values)
            return all(parts) if isinstance(node.op, ast.And) else any(parts)
        case ast.BinOp():
            return _compute(node, _evaluate(node.left, values), _evaluate(node.right, values))
        case ast.Compare():
            left = _evaluate(node.left, values)
            for sign, side in zip(node.ops, node.comparators, strict=True):
                right = _evaluate(side, values)
                if not _COMPARE[type(sign)](left, right):
                    return False
                left = right
            return True
        case _:
            raise ValueError(f"{ast.dump(node)} is not understood")


def _compute(node: ast.BinOp, left: Any, right: Any) -> Any:
    if isinstance(left, str | list) or isinstance(right, str | list):
        raise TypeError
    return _bound(node, _BINARY[type(node.op)](left, right))


def _bound(node: ast.AST, value: Any) -> Any:
    if not isinstance(value, str) and not abs(value) <= LARGEST:
        raise ValueError(f"{shorten(ast.unparse(node), 40)} is larger than {LARGEST:g}")
    return value
