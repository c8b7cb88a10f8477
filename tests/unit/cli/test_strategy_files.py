"""Writing the files of an advice: the bundle, single files, and places that cannot be written."""

import os
from pathlib import Path

import pytest

from advisor.cli.exits import CommandFailed
from advisor.cli.tuning.strategy_files import default_directory, write_bundle, write_files

from .advices import a_change
from .fake_server import FakeServer


def test_bundle_holds_what_the_training_loads_and_a_report(tmp_path: Path) -> None:
    written = write_bundle(a_change(), FakeServer().add_job("aaa1"), tmp_path / "new")
    assert {path.name for path in written} == {
        "strategy.json", "run.sh", "fleet_advisor_runtime.pyz", "report.html",
    }  # fmt: skip
    assert os.access(tmp_path / "new" / "run.sh", os.X_OK)


def test_bundle_takes_the_place_of_an_earlier_one_and_of_nobody_elses_file(tmp_path: Path) -> None:
    job = FakeServer().add_job("aaa1")
    (tmp_path / "run.sh").write_text("theirs")
    with pytest.raises(CommandFailed, match=r"a run\.sh that"):
        write_bundle(a_change(), job, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run.sh"]
    assert (tmp_path / "run.sh").read_text() == "theirs"
    assert (
        write_bundle(a_change(), job, tmp_path / "ours")[0].name == "strategy.json"
    )  # what is cut off is ours too
    (tmp_path / "ours" / "run.sh").write_text("old")
    write_bundle(a_change(), job, tmp_path / "ours")
    assert (tmp_path / "ours" / "run.sh").read_text() != "old"


def test_name_of_a_job_becomes_the_name_of_a_directory() -> None:
    assert default_directory(FakeServer().add_job("aaa1", name="../my run/2")) == Path("advisor-..-my-run-2")


def test_directory_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(CommandFailed, match="cannot be written"):
        write_files({"a.json": b"{}"}, tmp_path / "taken")
