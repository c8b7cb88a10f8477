"""Whatever torch or Python is given to call inside the script's own calls is guarded."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

RUNTIME = Path(__file__).parents[2] / "agent" / "runtime"
REGISTERS = re.compile(r"register_\w*hook|register_at_fork|register|append")
"""Methods that take a function; of the last two only those of atexit and of gc's callbacks."""
DRIVEN = {"inject/patches.py", "hooks.py", "current.py"}
"""Each function of theirs tells a guard only: test_guard.py drives them while all of the runtime fails."""
FREE = {
    "inject/joining.py: count": "counts and calls what is harmless",
    "nccl_tuner/plugin.py: _remove": "at the end of the process, where Python prints what fails and goes on",
    "levers/reduction/unused_watch.py: mark": "in a backward of ours, whose end is guarded",
    "levers/reduction/deferred_sync.py: mark": "in a backward of ours, whose error ends the training in a sentence",
}
GUARDS = {"guarded", "_harmless"}


def find_unguarded(path: str, source: str) -> Iterator[str]:
    tree = ast.parse(source)
    guarded = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(made, ast.Name) and made.id in GUARDS for made in node.decorator_list)
    } | {
        node.targets[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_guard(node.value)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args or not _registers(node.func):
            continue
        given = node.args[0]
        if not _is_guard(given) and not (isinstance(given, ast.Name) and given.id in guarded):
            yield f"{path}: {ast.unparse(given)}"


def _is_guard(given: ast.expr) -> bool:
    return isinstance(given, ast.Call) and isinstance(given.func, ast.Name) and given.func.id in GUARDS


def _registers(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if not REGISTERS.fullmatch(name):
        return False
    owner = ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""
    return owner in ("atexit", "gc.callbacks") if name in ("register", "append") else True


def test_hooks_are_guarded() -> None:
    found = {
        wrong
        for path in RUNTIME.rglob("*.py")
        if (name := str(path.relative_to(RUNTIME))) not in DRIVEN
        for wrong in find_unguarded(name, path.read_text())
    }
    assert found == FREE.keys()


def test_unguarded_ones_are_found() -> None:
    wrong = "module.register_forward_hook(self._note)\natexit.register(leave)\ngc.callbacks.append(note)\n"
    right = "model.register_hook(guarded(self._note))\n@guarded\ndef f(_): ...\nt.register_hook(f)\nkept.append(f)\n"
    assert len(list(find_unguarded("x", wrong))) == 3
    assert not list(find_unguarded("x", right))
