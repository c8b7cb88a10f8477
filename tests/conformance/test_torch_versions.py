"""What the runtime takes from torch, looked up in the sources of the versions that it serves; nothing of them runs.

The installed torch stands for itself. Of the others pip fetches the smallest wheels there are, 60 to 140 MB each, whose
Python files are the same on every platform; they are unpacked once into `.conformance`.
"""

import ast
import fcntl
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from agent.runtime import private_torch
from agent.runtime.levers.reduction.reducer import HELPER_ARGUMENTS
from tests.architecture.torch_sources import find_wrong_declarations, is_defined, parse, read_version

from .conftest import ENVIRONMENTS, HERE

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(600)]

INSTALLED = "2.13"
WHEELS = ("2.1.2", "2.3.1", "2.6.0", "2.9.1", "2.12.1", "2.14.1", "2.15.0")
RUNTIME = HERE.parents[1] / "agent" / "runtime"
FETCH_TIMEOUT_S = 240


@cache
def provide_sources(version: str) -> Path | str:
    """The folder that holds that torch's Python files, or why there is none."""
    if version == INSTALLED:
        return Path(private_torch.torch.__file__).parents[1]
    folder = ENVIRONMENTS / f"torch-sources-{version}"
    ENVIRONMENTS.mkdir(exist_ok=True)
    with (ENVIRONMENTS / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder
        with tempfile.TemporaryDirectory(dir=ENVIRONMENTS) as place:
            failure = fetch_wheel(version, Path(place))
            if failure:
                return failure
            [wheel] = Path(place).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if name.endswith((".py", ".pyi"))]
                archive.extractall(Path(place, "unpacked"), names)
            shutil.move(Path(place, "unpacked"), folder)
    return folder


def fetch_wheel(version: str, folder: Path) -> str:
    """Why it could not be fetched, or nothing."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    systems = [word for name in ("macosx_11_0_arm64", "macosx_14_0_arm64") for word in ("--platform", name)]
    platform = [*systems, "--python-version", "3.11"]
    words = [*pip, *platform, "--dest", str(folder), f"torch=={version}"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"pip did not fetch torch {version} within {FETCH_TIMEOUT_S} s"
    return f"pip could not fetch torch {version}: {done.stderr[-300:]}" if done.returncode else ""


@pytest.fixture(scope="module", params=[*WHEELS, INSTALLED])
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def sources(version: str) -> Path:
    found = provide_sources(version)
    if isinstance(found, str):
        pytest.skip(found)
    return found


def test_private_names_are_there_from_when_to_when_the_runtime_says(sources: Path, version: str) -> None:
    wrong = find_wrong_declarations(sources, version)
    assert not wrong, f"torch {version} differs from what agent/runtime/private_torch.py declares"


def test_ddps_init_helper_takes_what_the_runtime_gives(sources: Path) -> None:
    tree = parse(sources, "torch.nn.parallel.distributed")
    assert tree is not None
    [helper] = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == private_torch.BUILD_REDUCER.name
    ]
    assert [argument.arg for argument in helper.args.args] == ["self", *HELPER_ARGUMENTS]


def list_imports() -> Iterator[tuple[str, str]]:
    """(module, name or nothing) of what the runtime imports from torch wherever it is loaded."""
    for path in RUNTIME.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                yield from ((name.name, "") for name in node.names if name.name.split(".")[0] == "torch")
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
                yield from ((str(node.module), name.name) for name in node.names)


def test_imports_of_the_runtime_are_there(sources: Path) -> None:
    imports = set(list_imports())
    assert ("torch.optim.optimizer", "register_optimizer_step_pre_hook") in imports
    missing = [
        (module, name)
        for module, name in sorted(imports)
        if (name and not is_defined(sources, module, name) and parse(sources, f"{module}.{name}") is None)
        or parse(sources, module) is None
    ]
    assert not missing


def test_a_name_that_no_torch_has_is_missed(sources: Path) -> None:
    home = "torch.nn.parallel.distributed:DistributedDataParallel"
    assert is_defined(sources, home, "_module_parameters")
    assert not is_defined(sources, home, "_module_parametres")
    assert not is_defined(sources, "torch.nn.parallel.distributed:_DDPSink", "_module_parameters")
    assert not is_defined(sources, "torch.nn.parallel.elsewhere", "_module_parameters")


def test_installed_torch_and_others_were_looked_up() -> None:
    """Without a single other version this would prove nothing: that is a failure, whatever the network."""
    assert read_version(private_torch.torch.__version__) == read_version(INSTALLED)
    assert max(map(read_version, WHEELS)) == private_torch.NEWEST
    reasons = [found for version in WHEELS if isinstance(found := provide_sources(version), str)]
    assert len(reasons) < len(WHEELS), reasons
