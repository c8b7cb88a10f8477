"""The soak's judge sees what it is there to see: results that are gone, counted twice, or never decided about."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from faulty_agent import Counts, Report
from soak import Use, find_growth, judge

from advisor.storage import Database
from tests.unit.services.scripted_tuning import make_result

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'advisor.db'}"
    database = Database(url, lambda: "unused")
    database.migrate()
    with database.begin() as work:
        work.blocks.quarantine("s1", "b1", "a1", 1, make_result(), "sha", "Too late.", NOW)
    database.close()
    return url


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
def test_what_went_wrong_is_told(url: str, reports: list[Report], words: str) -> None:
    told = "; ".join(judge(url, Counts(reports=reports)))
    assert words in told if words else not told


@pytest.mark.parametrize(
    ("blocks", "words"), [({"b1"}, ""), ({"b1", "b2"}, "1 reports of real agents' spools")]
)
def test_report_of_a_real_agent_that_is_nowhere_is_told(url: str, blocks: set[str], words: str) -> None:
    told = "; ".join(judge(url, Counts(), [blocks]))
    assert words in told if words else not told


@pytest.mark.parametrize(
    ("late", "words"),
    [((100, 40), ""), ((200, 40), "grew by 100 MB"), ((100, 90), "holds 50 descriptors more")],
)
def test_growth_is_told(late: tuple[int, int], words: str) -> None:
    uses: list[Use] = [(float(i), 100 * 2**20, 40) for i in range(12)]
    uses += [(12.0 + i, late[0] * 2**20, late[1]) for i in range(6)]
    told = "; ".join(find_growth(uses))
    assert words in told if words else not told
