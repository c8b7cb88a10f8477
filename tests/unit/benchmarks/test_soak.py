"""The soak's judge sees what it is there to see: results that are gone, counted twice, or never decided about."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from faulty_agent import Counts, Report
from soak import judge

from advisor.storage import Database
from tests.unit.services.scripted_tuning import make_result

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    database = Database(f"sqlite:///{tmp_path / 'advisor.db'}", lambda: "unused")
    database.migrate()
    with database.begin() as work:
        work.blocks.quarantine("s1", "b1", "a1", 1, make_result(), "sha", "Too late.", NOW)
    database.close()
    return tmp_path


def report(block: str, answer: str) -> Report:
    return Report(f"/sessions/s1/races/{block}", {"generation": 1, "results": {block: {}}}, answer)


@pytest.mark.parametrize(
    ("reports", "words"),
    [
        ([report("b1", "quarantined")], ""),
        ([report("b2", "quarantined")], "gone from the quarantine: b2"),
        ([report("b1", "accepted")], "Accepted results are gone: b1"),
        ([report("b1", "")], "never decided about"),
        ([report("b1", "quarantined"), report("b1", "accepted"), report("b1", "accepted")], "two accepted"),
    ],
)
def test_what_went_wrong_is_told(folder: Path, reports: list[Report], words: str) -> None:
    told = "; ".join(judge(folder, Counts(reports=reports)))
    assert words in told if words else not told
