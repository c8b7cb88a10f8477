"""Faults put into rules of thumb and values to try, one at a time, in a module of knobs."""

import ast
import copy
import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass

from advisor.protocol.base import Value
from advisor.protocol.knobs.knob import Knob

_SWAPPED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_SWAPPED_CALLS = {"min": "max", "max": "min"}
_FIXED = 2
"""Stands in for a value that a rule computes."""


@dataclass(frozen=True)
class Mutant:
    """A module's knobs with one fault in one rule."""

    fault: str
    """`communication.py:34: 10 becomes 11`."""
    knobs: tuple[Knob, ...]


def make_mutants(module: types.ModuleType) -> Iterator[Mutant]:
    """Yield the module's knobs once for each fault in what a `rule=` or a `grid=` reaches there."""
    source = ast.parse(inspect.getsource(module))
    for number in range(len(list(_list_faults(source)))):
        tree = copy.deepcopy(source)
        node, attribute, value, words = list(_list_faults(tree))[number]
        setattr(node, attribute, value)
        namespace = {"__name__": module.__name__}
        exec(compile(ast.fix_missing_locations(tree), module.__name__, "exec"), namespace)
        knobs = next(v for v in namespace.values() if isinstance(v, tuple) and v and isinstance(v[0], Knob))
        yield Mutant(f"{module.__name__.rpartition('.')[2]}.py:{node.lineno}: {words}", knobs)


def _list_faults(tree: ast.Module):
    """Yield (node, attribute, faulty value, words)."""
    for root in _reach(tree):
        told = {
            id(part) for text in ast.walk(root) if isinstance(text, ast.JoinedStr) for part in ast.walk(text)
        }
        for node in ast.walk(root):
            match node:
                case ast.Constant(value=int() | float() | str() as value) if (
                    not _is_sentence(value) and id(node) not in told
                ):
                    other = _change(value)
                    yield node, "value", other, f"{value!r} becomes {other!r}"
                case ast.Compare(ops=[op]):
                    yield node, "ops", [_SWAPPED[type(op)]()], f"{type(op).__name__} is swapped"
                case ast.BoolOp(op=op):
                    yield node, "op", _SWAPPED[type(op)](), f"{type(op).__name__} is swapped"
                case ast.Call(func=ast.Name(id=name) as called) if name in _SWAPPED_CALLS:
                    yield called, "id", _SWAPPED_CALLS[name], f"{name} is swapped"
                case ast.Call(func=ast.Name(id="Rule"), args=[value, because]) if not isinstance(
                    value, ast.Constant
                ):
                    yield node, "args", [ast.Constant(_FIXED), because], f"the value is always {_FIXED}"


def _reach(tree: ast.Module) -> list[ast.AST]:
    """The values of `rule=` and `grid=`, and the functions and constants of the module that they use."""
    named: dict[str, ast.AST] = {}
    for statement in tree.body:
        match statement:
            case ast.FunctionDef(name=name, body=body):
                named[name] = ast.Module(body, [])
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                named[name] = value
    found = [
        word.value
        for word in ast.walk(tree)
        if isinstance(word, ast.keyword) and word.arg in {"rule", "grid"}
    ]
    for node in found:  # It grows meanwhile.
        used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        found += [named[name] for name in sorted(used & named.keys()) if named[name] not in found]
    return found


def _is_sentence(value: object) -> bool:
    """Whether it is a reason or a docstring, which readers check."""
    return isinstance(value, str) and value.endswith(".")


def _change(value: Value) -> Value:
    if isinstance(value, bool):
        return not value
    return f"{value}?" if isinstance(value, str) else value + 1
