"""The page of frameworks' releases: what pytest's report says is told as it is."""

import xml.etree.ElementTree as ElementTree

import pytest

from tests.releases.frameworks import FRAMEWORKS, count, describe, find_bound, main

REPORT = """<testsuites><testsuite>
<testcase name="test_passes"/>
<testcase name="test_skips"><skipped message="no GPU"/></testcase>
<testcase name="test_fails"><failure message="assert 1&#10;  == 2"/></testcase>
<testcase name="test_breaks"><error message="no module"/></testcase>
</testsuite></testsuites>"""


def test_each_failure_is_counted_and_told_once() -> None:
    told = count(ElementTree.fromstring(REPORT))
    failed = {"test_fails": "assert 1 == 2", "test_breaks": "no module"}
    assert told == {"passed": 1, "skipped": 1, "failed": failed}
    entry = {"framework": "ray", "release": "2.60.0", "date": "2026-11-29", "beside": "", "tests": "`tests`"}
    entry |= {"asked": "ray>=9", **told}
    page = describe([entry], "2025-11-30", "2.13.0")
    row = "1 passed, 1 skipped, **2 failed** (`ray>=9` of pyproject.toml excludes it)"
    assert f"| ray | 2.60.0 | 2026-11-29 |  | `tests` | {row} |" in page
    assert "* ray 2.60.0, 1 of its tests: assert 1 == 2" in page


def test_a_framework_that_is_not_tried_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tensorflow"])
    assert f"no framework 'tensorflow'; there are {', '.join(FRAMEWORKS)}" in capsys.readouterr().err


def test_a_release_that_we_do_not_ask_for_is_told_with_what_we_ask_for() -> None:
    assert find_bound("optuna", "4.6.0").startswith("optuna>=")
    assert not find_bound("optuna", "99.0")
    assert not find_bound("deepspeed", "0.1")
