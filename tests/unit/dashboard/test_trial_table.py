"""The table of trials: sorted, filtered, with chosen columns, and as a file that no spreadsheet runs."""

import csv
import io
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from advisor.dashboard.views.trials.measured import measure_trials
from advisor.dashboard.views.trials.table import COLUMNS, TrialQuery, view_trial_table, write_csv
from advisor.errors import InvalidRequest
from advisor.protocol.measured.trials import JobHistory
from tests.samples.job import make_finished_story
from tests.samples.stored import NOW, Stories

STORY = make_finished_story(NOW)
TRIALS = measure_trials(STORY.history)


def read(
    sort: str = "-number",
    state: str = "",
    rung: str = "",
    changes: str = "",
    columns: str = "",
    page: str = "1",
) -> TrialQuery:
    asked = {"sort": sort, "state": state, "rung": rung, "changes": changes, "columns": columns, "page": page}
    return TrialQuery.read(list(asked.items()))


def numbers(query: TrialQuery) -> list[int]:
    return [found.trial.number for found in query.select(TRIALS)]


def test_fastest_come_first_and_those_without_a_figure_last_whichever_way() -> None:
    assert numbers(read("-samples"))[:3] == [9, 7, 10]
    assert set(numbers(read("-samples"))[-2:]) == set(numbers(read("samples"))[-2:]) == {6, 8}
    assert numbers(read("samples"))[0] == 4


def test_filters_narrow_each_other() -> None:
    assert numbers(read(state="failed")) == [6]
    assert numbers(read(state="idle")) == [8]
    assert numbers(read(state="pruned")) == [4]
    assert numbers(read(rung="numeric")) == [7]
    assert numbers(read(changes="GRAD_size 96")) == [10, 5]
    assert numbers(read(changes="grad_size", state="pruned")) == [4]
    assert numbers(read(changes="nothing like it")) == []


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"sort": "speed"}, "There is no sort by speed."),
        ({"sort": "--samples"}, "There is no sort by -samples."),
        ({"state": "done"}, "There is no state done."),
        ({"rung": "safe"}, "There is no rung safe."),
        ({"columns": "number,colour"}, "There is no column colour."),
    ],
)
def test_word_that_means_nothing_is_refused_with_those_that_do(query: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read(**query)
    assert refusal.value.sentence == sentence
    assert refusal.value.hint.startswith("There are ")


def test_heading_sorts_the_other_way_and_keeps_what_was_filtered() -> None:
    query = read("-samples", state="ok")
    columns = {column.key: column for column in COLUMNS}
    assert query.direction(columns["samples"]) == "descending"
    assert query.direction(columns["step"]) == ""
    assert query.sort_by(columns["samples"]) == "sort=samples&state=ok"
    assert query.sort_by(columns["step"]) == "sort=-step&state=ok"
    assert query.sort_by(columns["changes"]) == "sort=changes&state=ok"
    assert view_trial_table(TRIALS, None, query).total == len(TRIALS)


def test_chosen_columns_stand_in_the_order_of_the_table() -> None:
    table = view_trial_table(TRIALS, None, read(columns="loss,number,memory"))
    assert [column.key for column in table.columns] == ["number", "memory", "loss"]
    assert table.columns[1].show(table.rows[0]) == "101 GiB"
    assert read(columns="loss,number").address() == "columns=loss%2Cnumber"


def test_advised_strategy_is_marked_and_the_baseline_is_not(
    stories: Stories, sign_in: Callable[[str], TestClient]
) -> None:
    assert STORY.advice is not None
    client = sign_in("adv_viewer_3_x")
    page = client.get("/jobs/sample/trials").text
    assert re.findall(r'<tr class="advised"><td><input [^>]*value="(\d+)"', page) == ["10", "5"]
    stories.tell(replace(STORY, advice=STORY.advice.model_copy(update={"changes": {}})))
    assert 'class="advised"' not in client.get("/jobs/sample/trials").text


def test_file_has_every_column_and_no_cell_that_a_spreadsheet_calculates() -> None:
    evil = tuple(
        trial.model_copy(update={"because": f"{start}1+1", "outcome_reason": '"quoted",\nand on two lines'})
        for trial, start in zip(STORY.history.trials, "=+-@'=+-@'=", strict=True)
    )
    text = write_csv(measure_trials(STORY.history.model_copy(update={"trials": evil})), read("number"))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(TRIALS)
    assert len(rows[0]) == len(COLUMNS) + 2
    assert {row["because"][0] for row in rows} == {"'"}
    assert rows[0]["outcome_reason"].startswith('"quoted",')
    assert float(rows[5]["samples_per_s"]) == pytest.approx(1845, rel=0.01)
    assert float(rows[5]["exposed_s"]) == pytest.approx(0.0031)
    assert rows[6]["samples_per_s"] == ""


def test_file_is_to_be_saved_and_follows_the_filters(sign_in: Callable[[str], TestClient]) -> None:
    answer = sign_in("adv_viewer_3_x").get("/jobs/sample/trials.csv?state=failed")
    assert answer.headers["content-disposition"] == 'attachment; filename="trials-sample.csv"'
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert [row["trial"] for row in csv.DictReader(io.StringIO(answer.text))] == ["6"]


def test_page_keeps_the_filters_and_says_when_they_leave_nothing(
    sign_in: Callable[[str], TestClient],
) -> None:
    client = sign_in("adv_viewer_3_x")
    page = client.get("/jobs/sample/trials?state=idle&changes=nccl").text
    assert "1 of 11 trials" in page
    assert 'value="nccl"' in page
    assert "trials.csv?state=idle&amp;changes=nccl" in page
    assert "None of the 11 trials fits these filters." in client.get("/jobs/sample/trials?changes=zzz").text
    refused = client.get("/jobs/sample/trials?sort=speed")
    assert refused.status_code == 422
    assert "There is no sort by speed." in refused.text


def test_page_without_a_trial_says_why(stories: Stories, sign_in: Callable[[str], TestClient]) -> None:
    client = sign_in("adv_viewer_3_x")
    for job_id, sentence in (("busy", "No trial yet"), ("sample", "It ended before its first trial")):
        story = stories.told[job_id]
        stories.tell(type(story)(story.job, JobHistory(), None, story.events, ()))
        assert sentence in client.get(f"/jobs/{job_id}/trials").text


def test_a_long_table_comes_in_pages_with_links_to_the_next() -> None:
    many = [
        replace(TRIALS[0], trial=TRIALS[0].trial.model_copy(update={"number": number}))
        for number in range(250)
    ]
    first = view_trial_table(many, None, read(sort="number"))
    assert ([found.trial.number for found in first.rows], first.matching) == (list(range(100)), 250)
    assert (first.first, first.previous_page, first.next_page) == (1, None, 2)
    last = view_trial_table(many, None, read(sort="number", page="3"))
    assert [found.trial.number for found in last.rows] == list(range(200, 250))
    assert (last.first, last.previous_page, last.next_page) == (201, 2, None)
    assert last.query.address(page=2) == "sort=number&page=2"
    assert "page" not in last.query.sort_by(COLUMNS[1]), "another order begins on its first page"
    behind = view_trial_table(many, None, read(page="9"))
    assert (behind.rows, behind.previous_page, behind.next_page) == ((), 3, None)
    for unknown in ("x", "-1", "1" * 9):
        with pytest.raises(InvalidRequest):
            read(page=unknown)
    assert write_csv(many, read(page="2")).count("\r\n") == 251, "the file has all of them"
