"""A virtual environment with one release of torch, what the runtime's suite needs, and the frameworks that take it."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / ".releases"
FRAMEWORKS = ("transformers", "accelerate", "lightning")
TESTING = ("pytest", "hypothesis", "pytest-timeout", "pytest-rerunfailures")
NEEDED_BYTES = 9 * 2**30
INSTALL_S = 1800


class NotInstallable(RuntimeError):
    """There is no such release here, or no room for it; the text says which."""


@dataclass(frozen=True)
class Environment:
    """One release's, and what pip put into it."""

    python: Path
    packages: dict[str, str]


def provide(release: str) -> Environment:
    """Install it; one that is there is taken. Raises NotInstallable."""
    folder = PLACE / f"torch-{release}"
    python = folder / "bin" / "python"
    if not python.exists():
        PLACE.mkdir(exist_ok=True)
        if shutil.disk_usage(PLACE).free < NEEDED_BYTES:
            raise NotInstallable(
                f"torch {release}: a build with CUDA needs {NEEDED_BYTES >> 30} GiB of free disk in {PLACE}"
            )
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    own = ("-e", f"{ROOT}[agent,server]")
    # Together: a framework's newest release may not take this torch, and pip then finds the newest that does.
    words = ["install", "--quiet", "--no-compile", f"torch=={release}", *own, *TESTING, *FRAMEWORKS]
    pip = [str(python), "-m", "pip"]
    try:
        done = subprocess.run([*pip, *words], capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        remove(release)
        raise NotInstallable(f"torch {release}: pip took more than {INSTALL_S} s") from None
    if done.returncode:
        remove(release)
        raise NotInstallable(f"torch {release}: {done.stderr.strip().splitlines()[-1]}")
    listed = subprocess.run([*pip, "list", "--format", "json"], capture_output=True, text=True, check=True)
    return Environment(python, {each["name"]: each["version"] for each in json.loads(listed.stdout)})


def remove(release: str) -> None:
    """Some five gigabytes."""
    shutil.rmtree(PLACE / f"torch-{release}", ignore_errors=True)
