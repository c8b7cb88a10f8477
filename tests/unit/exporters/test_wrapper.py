"""apply_strategy.py runs a script as Python itself would run it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.exporters import export

TELL = """\
import json, sys
if __name__ == "__main__":
    print(json.dumps([sys.argv, sys.path[0], __file__, __name__]))
    raise SystemExit(7)
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def wrapper(advise, tmp_path: Path) -> str:
    """The wrapper of a kept baseline, which needs no torch, in a folder of its own."""
    path = tmp_path / "export" / "apply_strategy.py"
    path.parent.mkdir()
    path.write_text(export(*advise({}), "wrapper").content)
    return str(path)


@pytest.mark.parametrize(
    "words", [("tell.py", "--a", "b c"), ("pkg/tell.py",), ("-m", "pkg.tell", "-m", "x"), ("-m", "tell")]
)
def test_the_script_sees_what_it_would_see_without_the_wrapper(words, wrapper: str, tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    for place in (tmp_path, tmp_path / "pkg"):
        (place / "tell.py").write_text(TELL)
    plain, wrapped = run(tmp_path, *words), run(tmp_path, wrapper, *words)
    assert plain.returncode == wrapped.returncode == 7, wrapped.stderr
    seen, seen_wrapped = json.loads(plain.stdout), json.loads(wrapped.stdout)
    assert (tmp_path / seen_wrapped[2]).resolve() == (tmp_path / seen[2]).resolve()
    assert seen_wrapped[3] == "__main__"
    assert seen_wrapped[:2] == seen[:2]


def test_without_a_script_it_says_how_it_is_used(wrapper: str, tmp_path: Path) -> None:
    done = run(tmp_path, wrapper)
    assert done.returncode == 1
    assert "usage: apply_strategy.py [-m module | script.py]" in done.stderr
