"""Trials side by side, and the figures of the search: each there, or with the reason why not."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import optuna
import pytest
from optuna.trial import TrialState
from starlette.testclient import TestClient

from advisor.dashboard.figures.savings import Saving, draw_savings
from advisor.dashboard.figures.study import draw_importances, draw_losses, draw_slice
from advisor.dashboard.views.trials.compare import compare_trials, read_numbers
from advisor.dashboard.views.trials.explore import explore
from advisor.dashboard.views.trials.explore_query import ExploreQuery
from advisor.dashboard.views.trials.measured import measure_trials
from advisor.errors import InvalidRequest, NotFound
from advisor.protocol.answers.advice import ParetoPoint
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import JobHistory
from advisor.tuning.history.study import study_job
from tests.samples.job import keep_defaults, make_finished_story, make_running_story
from tests.samples.stored import NOW, Stories

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


def test_page_of_a_sample_says_so(stories: Stories, sign_in: Callable[[str], TestClient]) -> None:
    many = [STORY.history.trials[5].model_copy(update={"number": number}) for number in range(11, 900)]
    trials = (*STORY.history.trials, *many)
    stories.tell(replace(STORY, history=STORY.history.model_copy(update={"trials": trials})))
    client = sign_in("adv_viewer_3_x")
    assert "of 900 trials are drawn" in client.get("/jobs/sample/explore").text
    assert 'id="sampled"' not in client.get("/jobs/sample/explore?state=failed").text


def test_saving_whose_interval_holds_nothing_is_never_called_sure() -> None:
    sure, open_ = Saving("a", 2.0, 1.0, 3.0, 8), Saving("b", 5.0, -1.0, 11.0, 8)
    assert "a saves most for sure" in draw_savings([open_, sure]).summary
    assert draw_savings([open_]).summary.startswith("No knob alone is sure to save time")


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


def test_every_figure_of_a_finished_search_is_drawn() -> None:
    page = explore(STORY.job, STORY.history, STORY.advice)
    assert page.absent == ()
    assert page.history is not None
    assert [row[0] for row in page.history.table.rows] == [str(t.number) for t in STORY.history.trials]
    assert "the best so far is trial 10 with +16.3 %" in page.history.summary, "trial 9 is not allowed"
    assert page.importances is not None
    ranked = [row[0] for row in page.importances.table.rows]
    slices = {figure.title: figure for figure in (*page.slices, *page.more_slices)}
    assert list(slices) == ranked, "the most important come first"
    assert len(page.slices) == 2, "the others are folded"
    assert "NCCL_SOCKET_NTHREADS" not in slices, "its only trial had no effect"
    assert slices["fuse_grad_size_in_MB"].table.rows[2] == ("10", "96", "+16.3 %")
    assert page.savings is not None
    assert page.savings.table.rows[-1][-1] == "8"


def test_figures_are_those_that_optuna_draws_of_the_study() -> None:
    page = explore(STORY.job, STORY.history, STORY.advice)
    study = study_job(STORY.job, STORY.history)
    done = study.get_trials(states=(TrialState.COMPLETE,))
    assert page.history is not None
    traces = {trace["name"]: trace for trace in json.loads(page.history.plot)["data"]}
    allowed = {t.number: t.value for t in done if t.constraints["allowed"] <= 0}
    assert dict(zip(traces["throughput over the baseline's"]["x"], traces["throughput over the baseline's"]["y"],
                    strict=True)) == allowed  # fmt: skip
    assert traces["best so far"]["y"][-1] == study.best_value
    assert set(traces["not allowed"]["x"]) == {t.number for t in done} - allowed.keys()
    for figure in (page.history, page.importances, *page.slices, page.contour, page.parallel, page.pareto):
        assert figure is not None
        told = json.loads(figure.plot)
        assert "title" not in told["layout"], "the page has one"
        assert not any(trace.get("marker", {}).get("showscale") for trace in told["data"]), figure.id


def test_slice_of_a_switch_shows_the_trials_that_are_not_allowed() -> None:
    figure = draw_slice(study_job(STORY.job, STORY.history), "fp16_allreduce")
    traces = {trace["name"]: trace for trace in json.loads(figure.plot)["data"]}
    assert sorted(traces["not allowed"]["x"]) == ["False", "True"], "local SGD without it, and it itself"
    assert figure.table.rows[1][:2] == ("7", "on")


def test_importances_leave_out_what_never_changed_and_rank_what_matters() -> None:
    study = optuna.create_study(direction="maximize")
    for number in range(40):
        study.add_trial(
            optuna.trial.create_trial(
                value=1.0 + number % 4,
                params={"matters": number % 4, "does not": number // 4 % 5, "same": 3},
                distributions={
                    name: optuna.distributions.IntDistribution(0, 9)
                    for name in ("matters", "does not", "same")
                },
                user_attrs={"trial": number},
            )
        )
    figure = draw_importances(study)
    assert figure is not None
    assert [row[0] for row in figure.table.rows] == ["matters", "does not"]
    assert float(figure.table.rows[0][1]) > 0.8
    assert "the fastest 5 of 40 trials" in figure.summary


def test_figure_that_cannot_be_drawn_says_why() -> None:
    nothing = RUNNING.history.model_copy(update={"trials": (), "blocks": ()})
    early = explore(RUNNING.job, nothing, None)
    assert early.history is early.savings is early.pareto is early.contour is None
    assert early.slices == ()
    assert len(early.absent) == 6
    assert all(reason for _, reason in early.absent)
    assert STORY.advice is not None
    kept = keep_defaults(STORY.advice).model_copy(update={"pareto": ()})
    reasons = dict(explore(STORY.job, STORY.history, kept).absent)
    assert reasons["What each knob saves"].startswith("Nothing is advised")
    assert reasons["Speed against loss"].startswith("Only exact strategies")


def repeat_trials(count: int) -> JobHistory:
    """So many trials, the baseline first; every 500th of them is faster than all before."""
    first, last = STORY.history.trials[0], STORY.history.trials[5]
    (block,) = (block for block in STORY.history.blocks if block.trial_number == last.number)
    trials, blocks = [first], [b for b in STORY.history.blocks if b.trial_number == 0]
    for number in range(1, count):
        faster = 1 + number / count if number % 500 == 0 else 0.5
        changes: Mapping[str, Value] = {
            "fuse_grad_size_in_MB": float(1 + number % 7),
            "num_threads": 1 + number % 3,
        }
        trials.append(last.model_copy(update={"number": number, "changes": Changes(changes)}))
        assert block.result is not None
        times = tuple(step / faster for step in block.result.step_time_s)
        result = replace(block.result, step_time_s=times)
        summary = block.summary and block.summary.model_copy(update={"contrast": None})
        told = {
            "id": f"b{number}",
            "trial_number": number,
            "race": number,
            "result": result,
            "summary": summary,
        }
        blocks.append(block.model_copy(update=told))
    return STORY.history.model_copy(update={"trials": tuple(trials), "blocks": tuple(blocks)})


def test_figures_of_two_thousand_trials_are_of_a_sample_that_keeps_the_best() -> None:
    page = explore(STORY.job, repeat_trials(2000), None)
    assert page.history is not None
    assert (page.shown, page.total) == (2000, 2000)
    assert 80 <= page.drawn == len(page.history.table.rows) <= 110
    drawn = {row[0] for row in page.history.table.rows}
    assert {"0", "500", "1000", "1500"} <= drawn
    (markers, best) = json.loads(page.history.plot)["data"][:2]
    assert max(best["x"]) == max(markers["x"]) == max(map(int, drawn)), "trials keep their numbers"
    figures = [page.history, page.contour, page.parallel, *page.slices, *page.more_slices]
    assert sum(len(figure.plot) for figure in figures if figure is not None) < 300_000


def test_loss_that_was_not_seen_stands_in_the_table_only() -> None:
    def point(number: int, ratio: float, loss: float | None, error: float, on_front: bool) -> ParetoPoint:
        return ParetoPoint(
            trial_number=number, changes=Changes({"localsgd_k_steps": number}), effect=Effect.CONVERGENCE,
            throughput_ratio=ratio, loss_change=loss, loss_error=error, on_front=on_front,
        )  # fmt: skip

    points = [
        point(1, 1.2, 0.03, 0.01, True),
        point(2, 1.1, None, 0.0, False),
        point(3, 1.15, 0.01, 0.02, True),
    ]
    figure = draw_losses([*points, point(4, 1.1, 0.05, 0.01, False)], 0.02)
    beaten, front = json.loads(figure.plot)["data"]
    assert (beaten["x"], beaten["y"]) == ([1.1], [0.05])
    assert sorted(zip(front["x"], front["y"], strict=True)) == [(1.15, 0.0), (1.2, 0.03)], "as good as none"
    assert [row[2] for row in figure.table.rows] == ["+0.03", "not seen", "+0.01", "+0.05"]
    assert [row[4] for row in figure.table.rows] == ["yes", "no", "yes", "no"], (
        "Optuna's front is the advice's"
    )


def test_figures_of_a_filter_are_those_of_the_trials_that_fit() -> None:
    query = ExploreQuery.read([("state", "ok"), ("knob", "fuse_grad_size_in_MB"), ("low", "50")])
    page = explore(STORY.job, STORY.history, STORY.advice, query)
    assert page.history is not None
    assert [row[0] for row in page.history.table.rows] == ["2", "5", "10"]
    assert (page.shown, page.total) == (3, 11)
    assert json.loads(page.history.plot)["data"][0]["x"] == [2, 5, 10]
    nothing = ExploreQuery.read([("changes", "nothing of the kind")])
    none = explore(STORY.job, STORY.history, STORY.advice, nothing)
    assert none.shown == 0
    assert none.history is none.contour is none.parallel is none.pareto is None
    assert all("fit" in reason for title, reason in none.absent if title != "What each knob saves")
    assert none.knobs == page.knobs != ()


def test_contour_is_of_the_knobs_that_were_asked_for() -> None:
    query = ExploreQuery.read([("x", "nccl_comm_num"), ("y", "fp16_allreduce")])
    asked = explore(STORY.job, STORY.history, STORY.advice, query)
    assert asked.contour is not None
    assert asked.contour.title == "fp16_allreduce × nccl_comm_num"
    usual = explore(STORY.job, STORY.history, STORY.advice)
    assert {usual.query.x, usual.query.y} == {figure.title for figure in usual.slices}


def test_page_says_who_proposes_and_where_the_study_is(sign_in: Callable[[str], TestClient]) -> None:
    client = sign_in("adv_viewer_3_x")
    for page in ("/jobs/sample/explore", "/jobs/sample"):
        text = client.get(page).text
        assert "Optuna proposes the strategies, by our sampler <code>FleetSampler</code>" in text
        assert 'id="study-command"' in text
        assert "http://127.0.0.1:8080/dashboard/studies/" in text
