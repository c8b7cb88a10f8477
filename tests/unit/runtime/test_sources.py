"""Which files count as the script's own, and when two launches ran the same."""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

sources = importlib.import_module("fleet_advisor_runtime.observe.sources")


LAUNCHED_S = 1_700_000_000.0


class OnDemand(ModuleType):
    def __getattribute__(self, name: str) -> object:
        raise AssertionError("what loads on demand is loaded")


def make_module(path: Path, text: str = "x = 1\n", age_s: float = 3600.0) -> ModuleType:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (LAUNCHED_S - age_s,) * 2)
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    return module


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType | None]:
    """A script in a folder below the working directory, a module of its own, and what is not its own."""
    monkeypatch.chdir(tmp_path)
    make_module(tmp_path / "socket", age_s=0.0)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    return {
        "__main__": make_module(tmp_path / "src" / "train.py"),
        "net": make_module(tmp_path / "net.py"),
        "lib": make_module(tmp_path / "env" / "lib.py"),
        "packaged": make_module(tmp_path / "venv" / "lib" / "site-packages" / "packaged.py"),
        "elsewhere": make_module(tmp_path.parent / "elsewhere.py"),
        "written": make_module(tmp_path / "written.py", age_s=-1.0),
        "builtin": ModuleType("builtin"),
        "lazy": OnDemand("lazy"),
        "odd": None,
        "sources": sources,
    }


def test_own_files_are_those_of_the_working_directory_and_beside_the_script(
    modules: dict[str, ModuleType | None],
) -> None:
    assert list(sources.digest_own_sources(modules, "socket")) == ["src/train.py", "net.py"]


def test_digest_changes_with_the_file_and_not_with_its_time(
    modules: dict[str, ModuleType | None], tmp_path: Path
) -> None:
    before = sources.digest_own_sources(modules, "socket")
    make_module(tmp_path / "net.py", age_s=60.0)
    assert sources.digest_own_sources(modules, "socket") == before
    make_module(tmp_path / "net.py", "x = 2\n")
    after = sources.digest_own_sources(modules, "socket")
    assert {name for name in after if after[name] != before[name]} == {"net.py"}


def test_script_that_is_a_librarys_module_counts_and_what_cannot_be_read_does_not(
    modules: dict[str, ModuleType | None], tmp_path: Path
) -> None:
    modules["__main__"] = modules["packaged"]
    (tmp_path / "net.py").unlink()
    assert not sources.digest_own_sources(modules, "no socket")
    assert list(sources.digest_own_sources(modules, "socket")) == ["venv/lib/site-packages/packaged.py"]
