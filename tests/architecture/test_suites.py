"""The Makefile's suites hold every test exactly once, and the quick one starts no training."""

import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITES = ("QUICK", "SERVING", "WAITING", "APART")
MARKED = re.compile(r"pytest\.mark\.(distributed|testbed|browser|conformance)\b")


def read_suites() -> dict[str, list[Path]]:
    """The folders of each suite, as the Makefile has them."""
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    found = {name: re.search(rf"^{name}\s*:=\s*(.+)$", text, re.MULTILINE) for name in SUITES}
    return {name: [ROOT / word for word in match[1].split()] for name, match in found.items() if match}


TESTS = sorted(path for path in (ROOT / "tests").rglob("test_*.py"))


def test_every_test_belongs_to_exactly_one_suite() -> None:
    folders = [folder for suite in read_suites().values() for folder in suite]
    counted = {
        path.relative_to(ROOT): sum(path.is_relative_to(folder) for folder in folders) for path in TESTS
    }
    assert not [str(path) for path, count in counted.items() if count != 1]


@pytest.mark.parametrize("suite", SUITES)
def test_folders_of_the_suites_exist(suite: str) -> None:
    folders = read_suites()[suite]
    assert not [str(folder) for folder in folders if not list(folder.rglob("test_*.py"))]


def test_suites_that_only_compute_start_no_training() -> None:
    folders = [*read_suites()["QUICK"], *read_suites()["SERVING"]]
    quick = [path for path in TESTS if any(path.is_relative_to(folder) for folder in folders)]
    marked = [
        str(path) for path in quick if path.name != "test_suites.py" and MARKED.search(path.read_text())
    ]
    assert not marked, "move what starts torchrun, Chromium or a testbed to a slow folder"


def test_marks_part_the_waiting_tests_so_that_each_runs_once() -> None:
    text = (ROOT / "Makefile").read_text()
    given = {name: re.search(rf"^{name}\s*:=\s*(.+)$", text, re.MULTILINE)[1] for name in ("BUSY", "CALM")}
    asked = [
        found.strip("'")
        for found in re.findall(r"\t@\$\(BIN\)/pytest .*?-m ('[^']+'|\S+) \$\(WAITING\)", text)
    ]
    rules = [given.get(rule.strip("$()"), rule) for rule in asked]
    for marks in itertools.product((False, True), repeat=2):
        chosen = [rule for rule in rules if eval(rule, {}, dict(zip(("alone", "calm"), marks, strict=True)))]
        assert len(chosen) == 1, (marks, rules)


def test_tests_that_start_torchrun_say_so() -> None:
    for path in TESTS:
        text = path.read_text()
        starts = "subprocess" in text and re.search(r'"-m", "torch\.distributed\.run"', text)
        assert not starts or MARKED.search(text), f"{path.name} starts ranks: mark it as distributed"
