"""`advisor lab`: what is typed becomes a lab, and what is shown of it."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from advisor.cli.program import build_app
from advisor.lab.ledger import Ledger
from advisor.lab.rules import Lab
from advisor.protocol.kinds import Effect
from advisor.protocol.lab import Ended, Purpose, Started

NOW = datetime(2026, 11, 28, tzinfo=UTC)
RUNNER = CliRunner()


def call(*words: str) -> tuple[int, str]:
    done = RUNNER.invoke(build_app(["lab"]), ["lab", *words])
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("typed", "share"), [((), 0.05), (("--false-gains", "10%"), 0.1), (("--false-gains", "1"), 0.01)]
)
def test_a_lab_is_opened_with_its_promise(tmp_path: Path, typed: tuple[str, ...], share: float) -> None:
    code, told = call(
        "open", "--json", "--lab", str(tmp_path), *typed, "torchrun --nproc-per-node 2 train.py"
    )
    assert code == 0
    found = json.loads(told)
    assert found["false_gains"] == pytest.approx(share)
    assert found["next_error"] == pytest.approx(min(0.025, share * 0.8 / 40))
    code, told = call("status", "--lab", str(tmp_path))
    assert "GAINS    none told; adopted: none" in told
    assert call("open", "--lab", str(tmp_path), "torchrun train.py")[0] == 3
    code, told = call("open", "--lab", str(tmp_path / "x"), "--kind", "command", "./train")
    assert code == 2
    assert "a lab counts by itself" in told


def test_what_told_no_gain_is_not_adopted(tmp_path: Path) -> None:
    assert call("open", "--lab", str(tmp_path), "torchrun --nproc-per-node 2 train.py")[0] == 0
    code, told = call("adopt", "7", "--lab", str(tmp_path))
    assert code == 2
    assert "Race 7 told no gain" in told
    assert call("resume", "7", "--lab", str(tmp_path))[0] == 2
    assert call("report", "--measure", "--lab", str(tmp_path))[0] == 2


def test_what_verified_a_gain_again_is_no_idea_to_adopt(tmp_path: Path) -> None:
    assert call("open", "--lab", str(tmp_path), "torchrun train.py")[0] == 0

    def start(lab: Lab) -> Started:
        base = lab.baseline
        return Started(
            race=1, purpose=Purpose.ADOPT, idea="once more: no pause", by="maria", a=base, b=base,
            effect=Effect.EXACT, minutes=1, min_gain=0.01, error=0.025, of=9,
        )  # fmt: skip

    Ledger(tmp_path).append(NOW, start)
    Ledger(tmp_path).append(NOW, lambda _: Ended(race=1, sentence="at least +1.0 %"))
    code, told = call("adopt", "1", "--lab", str(tmp_path))
    assert code == 2
    assert "raced no idea of its own (once more: no pause)" in " ".join(told.split())


def test_report_is_written_as_its_file_name_says(tmp_path: Path) -> None:
    assert call("open", "--lab", str(tmp_path), "torchrun train.py")[0] == 0
    for name, begin in (("lab.html", "<!doctype html>"), ("lab.md", "# Lab "), ("lab.txt", "# Lab ")):
        path = tmp_path / "new" / name
        assert call("report", "--lab", str(tmp_path), "-o", str(path))[0] == 0
        assert path.read_text().startswith(begin)
    code, told = call("report", "--lab", str(tmp_path), "-o", str(tmp_path / "new" / "lab.md" / "x.html"))
    assert code == 1
    assert "x.html cannot be written" in " ".join(told.split())
