"""Trials side by side, and the figures of the search: each there, or with the reason why not."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from advisor.dashboard.figures.explore import (
    LossPoint,
    Saving,
    SlicePoint,
    draw_importance,
    draw_pareto,
    draw_slice,
)
from advisor.dashboard.figures.gains import Gain
from advisor.dashboard.figures.spaces import MOST_LINES, SpacePoint, draw_contour, draw_parallel
from advisor.dashboard.views.trials.compare import compare_trials, read_numbers
from advisor.dashboard.views.trials.explore import explore
from advisor.dashboard.views.trials.explore_query import ExploreQuery
from advisor.dashboard.views.trials.measured import MeasuredTrial, measure_trials
from advisor.errors import InvalidRequest, NotFound
from advisor.protocol.gains import spell_gain
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Outcome
from advisor.protocol.standing import SoFar
from tests.samples.job import keep_defaults, make_finished_story, make_running_story
from tests.samples.stored import NOW, Stories


def even(ratio: float) -> Gain:
    return Gain(ratio, ratio, ratio)


STORY, RUNNING = make_finished_story(NOW), make_running_story(NOW)
TRIALS = measure_trials(STORY.history)


def test_comparison_marks_what_differs() -> None:
    page = compare_trials(TRIALS, [0, 5])
    assert [side.trial.number for side in page.sides] == [0, 5]
    knobs = {row.label: row.cells for row in page.knobs}
    assert knobs["fuse_grad_size_in_MB"] == ("–", "96 MB")
    rows = {row.label: row for row in (*page.measures, *page.phases)}
    assert rows["against trial 0"].cells == ("–", "+16.1 %")
    assert rows["exposed communication"].cells == ("24.2", "3.10")
    assert rows["exposed communication"].differs
    assert not rows["forward"].differs
    assert page.figure is not None


def test_trials_that_were_not_measured_are_compared_by_what_they_changed() -> None:
    page = compare_trials(TRIALS, [6, 8])
    assert page.figure is None
    assert page.no_figure
    assert page.phases == ()
    assert page.sides[0].trial.outcome_reason.startswith("Rank 3 ran out of device memory")
    assert {row.cells for row in page.measures if row.label.startswith("rate")} == {("–", "–")}


def test_numbers_are_read_from_one_word_or_several() -> None:
    assert read_numbers(["0,3", " 7 ", "3"]) == [0, 3, 7]
    for wrong in ([], ["1"], ["1,2,3,4,5"], ["1", "x"], ["1", "-2"], ["1", "²"], ["1", "9" * 5000]):
        with pytest.raises(InvalidRequest):
            read_numbers(wrong)
    with pytest.raises(NotFound):
        compare_trials(TRIALS, [0, 99])


def test_comparison_of_one_trial_is_refused_in_words(sign_in: Callable[[str], TestClient]) -> None:
    client = sign_in("adv_viewer_3_x")
    answer = client.get("/jobs/sample/compare?trials=4")
    assert answer.status_code == 422
    assert "Two to 4 trials can be compared" in answer.text
    assert client.get("/jobs/sample/compare?trials=4,99").status_code == 404


def test_jobs_are_compared_by_what_was_asked_measured_and_advised(
    sign_in: Callable[[str], TestClient],
) -> None:
    client = sign_in("adv_viewer_3_x")
    page = client.get("/compare?jobs=sample&jobs=busy").text
    for words in ("at least +13.9", "measuring", "96 MB", "165.4", "138.9"):
        assert words in page, words
    assert client.get("/compare?jobs=sample").status_code == 422
    assert client.get("/compare").status_code == 422
    assert client.get("/compare?jobs=sample,none").status_code == 404


def test_every_figure_of_a_finished_search_is_drawn() -> None:
    page = explore(STORY.job, STORY.advice, TRIALS)
    assert (page.no_history, page.no_slices, page.no_importance, page.no_pareto) == ("", "", "", "")
    assert len(page.slices) == 2, "the others are folded"
    slices = {figure.title: figure for figure in (*page.slices, *page.more_slices)}
    assert "NCCL_SOCKET_NTHREADS" not in slices
    value, trials, middle, best = slices["fuse_grad_size_in_MB"].table.rows[1]
    assert (value, trials) == ("25 MB", "4")
    assert middle.endswith(" %")
    assert best.endswith(" %")
    assert page.importance is not None
    assert page.importance.table.rows[-1][-1] == "taken back"


def test_figure_that_cannot_be_drawn_says_why() -> None:
    early = explore(
        RUNNING.job, None, measure_trials(RUNNING.history.model_copy(update={"trials": (), "blocks": ()}))
    )
    assert early.history is early.importance is early.pareto is None
    assert early.slices == ()
    assert all((early.no_history, early.no_slices, early.no_importance, early.no_pareto))
    assert STORY.advice is not None
    kept = keep_defaults(STORY.advice).model_copy(update={"pareto": ()})
    page = explore(STORY.job, kept, TRIALS)
    assert page.no_importance.startswith("Nothing is advised")
    assert page.no_pareto.startswith("Only exact strategies")


def repeat_trials(count: int) -> tuple[MeasuredTrial, ...]:
    """So many trials, the baseline first; every 500th of them is faster than all before."""
    first, last = TRIALS[0], TRIALS[5]
    assert last.estimate is not None
    made = [first]
    for number in range(1, count):
        speed = last.estimate.samples_per_s * (1 + number / count if number % 500 == 0 else 0.5)
        changes = Changes({"fuse_grad_size_in_MB": float(1 + number % 7), "num_threads": 1 + number % 3})
        trial = last.trial.model_copy(update={"number": number, "changes": changes})
        made.append(
            replace(
                last, trial=trial, estimate=replace(last.estimate, samples_per_s=speed),
                gain=SoFar(ratio=speed / 1000, low=speed / 1100, high=speed / 900, races=1, launches=1),
            )
        )  # fmt: skip
    return tuple(made)


def test_figures_of_two_thousand_trials_are_of_a_sample_that_keeps_the_best() -> None:
    trials = repeat_trials(2000)
    page = explore(STORY.job, None, trials)
    assert page.history is not None
    assert (page.shown, page.total) == (2000, 2000)
    assert 200 <= page.drawn == len(page.history.table.rows) <= 310
    drawn = {row[0] for row in page.history.table.rows}
    assert {"0", "500", "1000", "1500"} <= drawn
    figures = [page.history, page.contour, page.parallel, *page.slices, *page.more_slices]
    assert sum(len(figure.plot) for figure in figures if figure is not None) < 300_000


def test_page_of_a_sample_says_so(stories: Stories, sign_in: Callable[[str], TestClient]) -> None:
    many = [STORY.history.trials[5].model_copy(update={"number": number}) for number in range(11, 900)]
    trials = (*STORY.history.trials, *many)
    stories.tell(replace(STORY, history=STORY.history.model_copy(update={"trials": trials})))
    client = sign_in("adv_viewer_3_x")
    assert "of 900 trials are drawn" in client.get("/jobs/sample/explore").text
    assert 'id="sampled"' not in client.get("/jobs/sample/explore?state=failed").text


def test_knobs_that_were_only_changed_together_share_one_figure() -> None:
    trials = repeat_trials(40)
    doubled = tuple(
        replace(
            found, trial=found.trial.model_copy(update={"changes": Changes({**found.trial.changes, **twin})})
        )
        for found in trials
        for twin in ({"nccl_comm_num": 1 + found.trial.number % 3} if found.trial.changes else {},)
    )
    page = explore(STORY.job, None, doubled)
    assert page.twins == ("num_threads",) or page.twins == ("nccl_comm_num",)
    assert len({figure.title for figure in (*page.slices, *page.more_slices)}) == 2


def test_slice_of_words_is_no_number_line() -> None:
    points = [
        SlicePoint(0, "a", even(10.0), "baseline"),
        SlicePoint(1, "", even(12.0), "exact"),
        SlicePoint(2, "a", even(11.0), "exact"),
    ]
    figure = draw_slice("knob", points)
    assert json.loads(figure.plot)["layout"]["xaxis"]["type"] == "category"
    assert figure.table.rows == (("empty", "1", "12x", "12x"), ("a", "2", "10x", "11x"))
    zero = draw_slice(
        "fuse_grad_size_in_MB",
        [SlicePoint(0, 0, even(10.0), "baseline"), SlicePoint(1, 8, even(12.0), "exact")],
    )
    assert json.loads(zero.plot)["layout"]["xaxis"]["type"] == "linear"


def test_slice_of_many_values_keeps_its_table_short() -> None:
    points = [SlicePoint(number, number, even(10.0 + number), "exact") for number in range(300)]
    figure = draw_slice("knob", points)
    assert len(figure.table.rows) == 24
    assert figure.table.rows[-1][0] == "299"
    assert len(json.loads(figure.plot)["layout"]["xaxis"]["tickvals"]) <= 10


def test_saving_whose_interval_holds_nothing_is_never_called_sure() -> None:
    sure, open_ = Saving("a", 2.0, 1.0, 3.0, 8, True), Saving("b", 5.0, -1.0, 11.0, 8, True)
    assert "a saves most for sure" in draw_importance([open_, sure]).summary
    assert draw_importance([open_]).summary.startswith("No knob alone is sure to save time")


def test_loss_that_was_not_seen_stands_in_the_table_only() -> None:
    seen = LossPoint(1, "x", "convergence", 20.0, 0.03, 0.01, True)
    unseen = LossPoint(2, "y", "numeric", 10.0, None, 0.0, False)
    figure = draw_pareto([seen, unseen], 0.02, 0.02)
    assert (
        sum(len(trace["x"]) for trace in json.loads(figure.plot)["data"] if trace["mode"] == "markers") == 1
    )
    assert [row[2] for row in figure.table.rows] == ["+0.03", "not seen"]
    assert "tolerated" in figure.plot
    assert "tolerated" not in draw_pareto([seen], None, 0.02).plot


def test_one_filter_applies_to_every_figure_and_lives_in_the_address(
    sign_in: Callable[[str], TestClient],
) -> None:
    client = sign_in("adv_viewer_3_x")
    everything = client.get("/jobs/sample/explore").text
    assert "NCCL_SOCKET_NTHREADS" not in everything.partition('id="slices"')[2]
    page = client.get("/jobs/sample/explore?state=ok&knob=fuse_grad_size_in_MB&low=50&x=nccl_comm_num").text
    assert '<option value="ok" selected>' in page
    assert 'name="low" inputmode="decimal" maxlength="30" value="50"' in page
    assert "of 11 trials in every figure" in page
    for figure in ("fig-history", "fig-parallel", "fig-slice-fuse_grad_size_in_MB"):
        assert f'id="{figure}"' in page, figure
        table = page.partition(f'id="{figure}"')[2].partition("</figure>")[0]
        assert "25 MB" not in table.partition("<tbody>")[2], figure


def test_figures_of_a_filter_are_those_of_the_trials_that_fit() -> None:
    query = ExploreQuery.read([("state", "ok"), ("knob", "fuse_grad_size_in_MB"), ("low", "50")])
    page = explore(STORY.job, STORY.advice, TRIALS, query)
    fitting = [found for found in TRIALS if found.trial.changes.get("fuse_grad_size_in_MB", 25) >= 50]
    numbers = [found.trial.number for found in fitting if found.trial.outcome is Outcome.FINISHED]
    assert 0 < page.shown == len(numbers) < page.total == len(TRIALS)
    assert page.history is not None
    drawn = [int(row[0]) for row in page.history.table.rows]
    assert len(drawn) > 0
    assert set(drawn) <= set(numbers)
    none = explore(STORY.job, STORY.advice, TRIALS, ExploreQuery.read([("changes", "nothing of the kind")]))
    assert none.shown == 0
    assert none.history is none.contour is none.parallel is none.pareto is None
    assert all(
        "fit" in reason for reason in (none.no_history, none.no_slices, none.no_contour, none.no_pareto)
    )
    assert none.knobs == page.knobs != ()


def test_filter_that_means_nothing_says_so(sign_in: Callable[[str], TestClient]) -> None:
    client = sign_in("adv_viewer_3_x")
    for wrong, words in {
        "knob=nccl_comm_num&low=many": "low: many is no number",
        "knob=nccl_comm_num&high=nan": "high: nan is no number",
        "low=3": "The range is of no knob",
        "knob=nccl_comm_num&low=3&high=2": "No value lies between 3 and 2",
        "state=fine": "There is no state fine",
    }.items():
        answer = client.get(f"/jobs/sample/explore?{wrong}")
        assert (answer.status_code, words in answer.text) == (422, True), wrong


def test_contour_is_of_the_knobs_that_were_asked_for() -> None:
    usual = explore(STORY.job, STORY.advice, TRIALS)
    assert usual.contour is not None
    assert (usual.query.x, usual.query.y) == (usual.slices[0].title, usual.slices[1].title)
    query = ExploreQuery.read([("x", usual.query.y), ("y", usual.query.x)])
    turned = explore(STORY.job, STORY.advice, TRIALS, query)
    assert turned.contour is not None
    assert turned.contour.title == f"{usual.query.y} × {usual.query.x}"


@pytest.mark.parametrize(("pairs", "is_shaded"), [(5, False), (6, True), (9, True)])
def test_shades_are_drawn_from_a_few_values_of_both_knobs_on(pairs: int, is_shaded: bool) -> None:
    points = [
        SpacePoint(
            n,
            {"fuse_grad_size_in_MB": 1 + n % 3, "num_threads": 1 + n // 3 if n < 8 else 3},
            100.0 + n,
            "exact",
        )
        for n in (0, 4, 8, 1, 2, 3, 5, 6, 7)[:pairs]
    ]
    figure = draw_contour(("fuse_grad_size_in_MB", "num_threads"), points)
    first, *others = json.loads(figure.plot)["data"]
    assert (first["type"] == "contour") is is_shaded
    assert ("Too few pairs" in figure.summary) is not is_shaded
    if is_shaded:
        assert (
            sum(value is not None for row in first["z"] for value in row) == len(figure.table.rows) == pairs
        )
        assert others[0]["mode"] == "markers"
    else:
        assert set(first["text"]) == {spell_gain(point.ratio) for point in points}


def test_parallel_coordinates_fold_what_a_phone_has_no_room_for() -> None:
    names = ["hierarchical_allreduce_inter_nranks", "NCCL_BUFFSIZE", "num_threads"]
    points = [SpacePoint(at, dict.fromkeys(names, 2 ** (20 + at)), 100.0 + at, "exact") for at in range(3)]
    labels = json.loads(draw_parallel(names, points).plot)["layout"]["yaxis"]["ticktext"]
    assert labels[0].startswith("hierarchical_<br>allreduce_inter_nranks<br>")
    assert labels[1] == "NCCL_BUFFSIZE<br>1048576 bytes …<br>4194304 bytes"
    assert all(len(line) <= 24 for label in labels for line in label.split("<br>"))


def test_parallel_coordinates_draw_the_fastest_of_many_trials() -> None:
    points = [
        SpacePoint(
            number, {"fuse_grad_size_in_MB": 2 ** (number % 8), "a": str(number % 3)}, 100.0 + number, "exact"
        )
        for number in range(400)
    ]
    figure = draw_parallel(["fuse_grad_size_in_MB", "a"], points)
    traces = json.loads(figure.plot)["data"]
    assert sum(trace["x"].count(None) for trace in traces) == MOST_LINES
    assert "The slower 250 are left out." in figure.summary
    places = [place for trace in traces for place in trace["x"] if place is not None]
    assert (min(places), max(places)) == (0.0, 1.0)
    assert figure.table.rows[1][:2] == ("a", "0 … 2")
