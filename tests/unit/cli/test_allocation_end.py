"""What `advisor tune --here` does with the time that its nodes have: nothing in too little, a stop before the end."""

import time
from pathlib import Path

import pytest

from advisor.cli.interrupts import interruptible
from advisor.cli.screen import Screen
from advisor.cli.tuning.tune_on_nodes import ending_in_time
from advisor.here.environments import Place

from .conftest import Run


def test_time_that_fits_nothing_is_refused_by_its_figure(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch")
    by_hand = ("--node-rank", "0", "--nodes", "1", "--head", "127.0.0.1")
    done = run(
        "tune", "--here", *by_hand, "--ends-in", "100s", "--", "torchrun", "--nproc-per-node", "2", "train.py"
    )
    assert done.exit_code == 101
    assert "This allocation ends in 1.7 min" in done.stderr
    assert "nothing was started" in done.stderr


def test_command_stops_a_minute_before_its_allocation_ends(capsys: pytest.CaptureFixture[str]) -> None:
    place = Place("by hand", 0, 1, "n0", ends_in_s=60.1)
    with pytest.raises(KeyboardInterrupt), interruptible(), ending_in_time(place, Screen()):
        time.sleep(30)
    assert "This allocation ends in 60 s: stopping while there is time" in "".join(capsys.readouterr())
