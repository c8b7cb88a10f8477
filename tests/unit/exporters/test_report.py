"""The report: one page with the answer and all that was tried, whatever a job holds."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest

from advisor.answers.report import export_report
from advisor.protocol.measured.trials import JobHistory, Outcome
from tests.samples.job import make_finished_story

FINISHED = make_finished_story(datetime(2026, 11, 23, 9, 0, tzinfo=UTC))
VOID = {"meta", "br"}


class Balance(HTMLParser):
    """Counts elements, and insists that each is closed in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def report(**history: object) -> str:
    assert FINISHED.advice is not None
    return export_report(FINISHED.advice, FINISHED.job, FINISHED.history.model_copy(update=history))


def test_report_tells_the_answer_where_a_step_goes_and_every_trial_and_asks_no_network() -> None:
    page = report()
    assert not re.search(r"(src|href)=|https?:|url\(|<script", page)
    for name in ("data wait", "exposed communication", "one step"):
        assert f"<td>{name}</td>" in page
    rows = page.split("What was tried")[1]
    assert rows.count("<tr>") == len(FINISHED.history.trials) + 1
    measured = {block.trial_number for block in FINISHED.history.done_blocks()}
    assert rows.count("<svg") == len(measured)


def test_every_element_is_closed() -> None:
    for page in (report(), report(trials=(), blocks=())):
        balance = Balance()
        balance.feed(page.replace("<!doctype html>", ""))
        assert not balance.open
        assert {"h1", "table", "svg"} <= set(balance.seen)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.FINISHED])
def test_a_trial_that_failed_says_how_and_hostile_text_stays_text(outcome: Outcome) -> None:
    last = FINISHED.history.trials[-1].model_copy(
        update={"outcome": outcome, "outcome_reason": "<script>alert(1)</script> $title {{ 7 }} " + "x" * 500}
    )
    page = report(trials=(*FINISHED.history.trials[:-1], last))
    assert outcome.words in page
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; $title {{ 7 }}" in page


def test_a_job_without_a_gain_draws_none() -> None:
    assert FINISHED.advice is not None
    kept = FINISHED.advice.model_copy(update={"changes": type(FINISHED.advice.changes)(), "gain": None})
    page = export_report(kept, replace(FINISHED, advice=kept).job, JobHistory())
    assert "What was tried" not in page
    assert 'role="img"' not in page
    assert "advised</th>" not in page
