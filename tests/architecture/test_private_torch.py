"""Private names of torch are spelled in one module of the runtime only."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from agent.runtime import private_torch
from tests.architecture.torch_sources import find_wrong_declarations

RUNTIME = Path(__file__).parents[2] / "agent" / "runtime"
DOOR = RUNTIME / "private_torch.py"
PRIVATE = re.compile(r"_[a-zA-Z]\w*[a-z0-9]\w*")
OURS = {"self", "cls", "os", "sys"}
"""Whose private names are no torch's: the object's own, and the standard library's os._exit and sys._getframe."""
ALLOWED = {
    "_fields": "what tells a namedtuple from a tuple",
    "_resolve_tracking_uri": "mlflow's",
    "_fleet_advisor_feed": "our own mark on an iterator",
}


def find_private_names(source: str) -> Iterator[str]:
    """`line: name` of each private name that is taken from an object other than our own, or imported from torch."""
    tree = ast.parse(source)
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Attribute) and not _is_our_own(node.value):
            names = [node.attr]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            names = node.value.split(".")
            names = names if names[0] == "torch" or len(names) == 1 else []
        elif isinstance(node, ast.Import):
            names = [part for name in node.names for part in name.name.split(".")]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [*(node.module or "").split("."), *(name.name for name in node.names)]
        for name in names:
            if PRIVATE.fullmatch(name) and not name.endswith("__") and name not in {*ALLOWED, *classes}:
                yield f"{getattr(node, 'lineno', 0)}: {name}"


def _is_our_own(owner: ast.expr) -> bool:
    if isinstance(owner, ast.Call):  # super()._begin()
        owner = owner.func
        return isinstance(owner, ast.Name) and owner.id == "super"
    return isinstance(owner, ast.Name) and owner.id in OURS


def test_private_names_of_torch_are_asked_for_in_one_module() -> None:
    found = {
        str(path.relative_to(RUNTIME)): names
        for path in RUNTIME.rglob("*.py")
        if path != DOOR and (names := list(find_private_names(path.read_text())))
    }
    assert not found, "declare the name in agent/runtime/private_torch.py, and ask for it there"


def test_private_names_are_found_however_they_are_spelled() -> None:
    spelled = (
        "ddp._module_parameters",
        "ddp.reducer._reset_state()",
        "getattr(ddp, '_comm_hooks', [])",
        "import torch._dynamo.config",
        "from torch._inductor.compile_fx import compile_fx",
        "from torch.optim.optimizer import _default_to_fused_or_foreach",
        "sys.modules.get('torch._dynamo')",
    )
    assert all(list(find_private_names(line)) for line in spelled)
    ours = ("self._steps", "super()._describe()", "os._exit(1)", "f'_{name}'", "ddp.module", "'_'")
    assert not [line for line in ours if list(find_private_names(line))]


def test_every_declared_name_is_used() -> None:
    sources = {path: path.read_text() for path in RUNTIME.rglob("*.py")}
    names = [
        target.id
        for node in ast.parse(sources[DOOR]).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Name) and ast.unparse(node.value.func) == "Private"
    ]
    assert len(names) > 50
    text = "\n".join(sources.values())
    assert not [name for name in names if len(re.findall(rf"\b{name}\b", text)) < 2]


def test_this_torch_has_every_name_where_it_is_declared() -> None:
    """As `make conformance` asks of the others."""
    torch = private_torch.torch
    assert len(private_torch.ALL) > 50
    assert not find_wrong_declarations(Path(torch.__file__).parents[1], torch.__version__)
