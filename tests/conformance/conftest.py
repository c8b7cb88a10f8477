"""Fixtures that provide the real consumers of exports: each Paddle in a virtual environment of its own."""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parents[1] / ".conformance"
PIP_TIMEOUT_S = 900


def provide_environment(
    name: str,
    requirements: Path,
    base: str = sys.executable,
    beside: str | None = None,
    prepare: tuple[str, ...] = (),
) -> Path:
    """Return the Python of `.conformance/<name>`, made anew when its requirements or the Python `base` changed.

    With the environment `beside`, whose packages it sees, it gets what they lack only. At last its Python is run once
    with the words `prepare`.
    """
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    stamp = folder / "requirements.sha256"
    version = sys.version if base == sys.executable else base
    made_of = version + " ".join(prepare)
    wanted = hashlib.sha256(requirements.read_bytes() + made_of.encode()).hexdigest()
    ENVIRONMENTS.mkdir(exist_ok=True)
    with (ENVIRONMENTS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if python.exists() and stamp.exists() and stamp.read_text() == wanted:
            return python
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([base, "-m", "venv", str(folder)], check=True, timeout=120)
        if beside is not None:
            packages = Path("lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")
            (folder / packages / "beside.pth").write_text(f"{Path(beside) / packages}\n")
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        installed = subprocess.run(
            [*pip, "-r", str(requirements)],
            capture_output=True,
            text=True,
            timeout=PIP_TIMEOUT_S,
            check=False,
        )
        if installed.returncode:
            pytest.fail(f"pip could not install {requirements.name}: {installed.stderr[-2000:]}")
        if prepare:
            subprocess.run([str(python), *prepare], check=True, timeout=PIP_TIMEOUT_S)
        stamp.write_text(wanted)
    return python


@pytest.fixture(scope="session")
def deepspeed_python() -> Path:
    """Give the Python that has DeepSpeed beside this environment's torch: this one where it has it itself.

    What DeepSpeed compiles at its first start is compiled here. In a test that takes minutes on a busy machine, and
    whoever is ended over it leaves a lock file behind, for which all later starts wait without end.
    """
    own = importlib.util.find_spec("deepspeed") is not None
    place = Path(sys.prefix) if own else ENVIRONMENTS / "deepspeed"
    os.environ["TORCH_EXTENSIONS_DIR"] = str(place / "extensions")
    cpu = "import os; os.environ['DS_ACCELERATOR'] = 'cpu'"
    compiles = f"{cpu}; from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as B; B().load()"
    if own:
        subprocess.run([sys.executable, "-c", compiles], check=True, timeout=PIP_TIMEOUT_S)
        return Path(sys.executable)
    requirements = HERE / "requirements-deepspeed.txt"
    return provide_environment("deepspeed", requirements, beside=sys.prefix, prepare=("-c", compiles))


@pytest.fixture(scope="session")
def trl_python() -> Path:
    """Give the Python that has TRL beside this environment's packages: this one where it has it itself."""
    if importlib.util.find_spec("trl"):
        return Path(sys.executable)
    return provide_environment("trl", HERE / "requirements-trl.txt", beside=sys.prefix)


@pytest.fixture(scope="session")
def paddle_python() -> Callable[[str], Path]:
    """Give the Python interpreter that has the named Paddle version."""
    files = {"3.3.1": "requirements-paddle.txt", "2.6.2": "requirements-paddle-2.6.2.txt"}

    def provide(version: str) -> Path:
        return provide_environment(f"paddle-{version}", HERE / files[version])

    return provide


@pytest.fixture
def clean_environment() -> dict[str, str]:
    """Give the environment for a child process: no proxies of pytest's own settings or of another launcher."""
    dropped = ("FLAGS_", "PADDLE_", "TORCHELASTIC_", "PYTEST_", "OMP_NUM_THREADS", "PYTHONPATH")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


def _load_factory() -> Callable[..., tuple[Advice, Job]]:
    path = HERE.parent / "unit" / "exporters" / "conftest.py"
    spec = importlib.util.spec_from_file_location("advised_jobs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.advise


@pytest.fixture(scope="session")
def advise() -> Callable[..., tuple[Advice, Job]]:
    """Give the factory of advised jobs that the unit tests of the exporters use."""
    return _load_factory()
