"""A trial's figures: warm-up is marked, a slow rank is found, and what is not drawn has its reason."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from advisor.dashboard.figures.trial import RankBlock, StepSeries, draw_ranks, draw_steps
from advisor.dashboard.views.trials.page import TrialPage, view_trial_page
from advisor.protocol.measured.results import BlockResult, Phases
from advisor.protocol.measured.trials import Block, JobHistory, Outcome
from tests.samples.job import make_finished_story
from tests.samples.stored import NOW, Stories


def view(alter: Callable[[BlockResult], dict[str, object]], number: int = 5, times: int = 1) -> TrialPage:
    """The page of a trial whose blocks' results are altered, and each of which was measured so many times."""

    def change(block: Block) -> Block:
        if block.trial_number != number or block.result is None:
            return block
        return block.model_copy(update={"result": replace(block.result, **alter(block.result))})

    history: JobHistory = make_finished_story(NOW).history
    again = [block.model_copy(update={"id": f"{block.id}-2"}) for block in history.blocks * (times - 1)]
    history = history.model_copy(update={"blocks": tuple(map(change, (*history.blocks, *again)))})
    return view_trial_page(history.trial(number), history)


def read(plot: str) -> list[dict]:
    return json.loads(plot)["data"]


def test_steps_are_thinned_out_and_every_step_of_a_warm_up_is_drawn() -> None:
    figure = draw_steps([StepSeries("block 0", tuple(0.1 for _ in range(10_000)), 7)])
    warm_up, rest = read(figure.plot)
    assert warm_up["x"] == list(range(7))
    assert warm_up["marker"]["symbol"] != rest["marker"]["symbol"]
    assert rest["x"][0] == 7
    assert len(rest["x"]) <= 2000
    assert figure.table.rows[0][1:3] == ("10000", "7")


def test_warm_up_of_a_block_that_was_measured_alone_is_what_its_statistics_left_out() -> None:
    page = view(lambda _: {})
    assert page.steps.table.rows[0][2] == "2"
    assert "10 steps of warm-up came before those of each block." in page.steps.summary
    assert "2 of them (×) are warm-up and not counted." in page.steps.summary


def test_arms_of_a_race_have_settled_before_their_first_timed_step() -> None:
    page = view(lambda result: {"segments": (30, 30)})
    assert page.steps.table.rows[0][2] == "0"
    assert "None of them is left out as warm-up." in page.steps.summary
    assert all("warm-up" not in trace["name"] for trace in read(page.steps.plot))


def test_steps_that_fill_no_period_are_no_warm_up() -> None:
    page = view(lambda result: {"period": 59, "warmup_steps": 0})
    assert page.steps.table.rows[0][2] == "1"
    assert page.steps.summary.endswith("1 of them (×) is warm-up and not counted.")


def test_slow_rank_is_a_row_that_the_sentence_names() -> None:
    blocks = [RankBlock(f"block {i}", (0.1, 0.1 + i / 1000, 0.12, 0.1)) for i in range(5)]
    figure = draw_ranks(blocks, "own work")
    (cells,) = read(figure.plot)
    assert len(cells["base"]) == len(cells["y"]) == 4 * 5
    assert list(dict.fromkeys(cells["y"])) == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert "a fuller colour is longer: rank 2 takes longest" in figure.summary
    assert "slowest in 5 of 5" in figure.summary
    assert figure.table.rows[2][:2] == ("2", "120.0")
    assert max(cells["marker"]["color"]) == 120.0


def test_colours_of_ranks_that_hardly_differ_are_nearly_one() -> None:
    (cells,) = read(draw_ranks([RankBlock("b", (0.1, 0.1001))], "own work").plot)
    marker = cells["marker"]
    assert marker["cmax"] - marker["cmin"] >= 0.099 * 100
    assert marker["cmin"] < min(marker["color"]) <= max(marker["color"]) < marker["cmax"]


def test_thousand_ranks_and_blocks_become_those_that_matter() -> None:
    seconds = tuple(0.1 + (0.05 if rank == 777 else rank * 1e-6) for rank in range(1000))
    figure = draw_ranks([RankBlock(f"block {i}", seconds) for i in range(300)], "own work")
    (cells,) = read(figure.plot)
    assert "rank 777" in cells["y"]
    assert len(cells["y"]) <= 2048
    assert "Drawn are the 32 ranks that take longest." in figure.summary
    assert "Drawn are the latest 64 blocks." in figure.summary


def test_own_work_is_drawn_where_it_is_known_and_step_times_where_not() -> None:
    assert view(lambda _: {}, times=2).rank_map.summary.startswith(
        "Own work of a step, without waiting for others, 16 ranks"
    )
    assert view(lambda _: {}).rank_map is None, "of one block the table of ranks says all"
    page = view(lambda _: {"per_rank_work_s": ()}, times=2)
    assert page.rank_map.summary.startswith("Time of a step, 16 ranks")
    assert page.missing == ()


@pytest.mark.parametrize(
    ("alter", "words"),
    [
        ({"per_rank_work_s": (), "per_rank_step_time_s": ()}, "told no times of single ranks"),
        ({"per_rank_work_s": (0.1,), "per_rank_step_time_s": (0.1,)}, "one rank trains"),
        ({"phases": Phases()}, "the ranks told step times only"),
        ({"step_time_s": ()}, "Single steps: none was timed"),
    ],
)
def test_figure_that_is_not_there_says_why(alter: dict[str, object], words: str) -> None:
    page = view(lambda _: alter)
    assert [sentence for sentence in page.missing if words in sentence] == list(page.missing)
    assert len(page.missing) == 1


def test_table_of_two_ranks_holds_each_against_the_middle_of_both() -> None:
    page = view(lambda _: {"per_rank_work_s": (0.08, 0.1), "per_rank_step_time_s": (0.1, 0.1)})
    assert [difference for _, _, _, difference in page.ranks] == ["−11.1 %", "+11.1 %"]


def test_trial_that_another_one_was_raced_for_says_which(sign_in: Callable, stories: Stories) -> None:
    """Its block is done and holds no times: it is not said to be unmeasured, or to be no PyTorch training."""
    story = make_finished_story(NOW)
    raced, own = (next(b for b in story.history.blocks if b.trial_number == n) for n in (4, 5))
    assert own.result is not None
    assert own.summary is not None
    idle = replace(
        own.result, steps=0, step_time_s=(), phases=Phases(), same_as=raced.id,
        per_rank_step_time_s=(0.0, 0.0), per_rank_work_s=(), losses=(),
    )  # fmt: skip
    none = own.summary.model_copy(update={"samples_per_s": 0.0, "steady_steps": 0})
    trials = tuple(
        trial.model_copy(update={"outcome": Outcome.INEFFECTIVE}) if trial.number == 5 else trial
        for trial in story.history.trials
    )
    blocks = (raced, own.model_copy(update={"result": idle, "summary": none}))
    stories.tell(
        replace(story, history=story.history.model_copy(update={"blocks": blocks, "trials": trials}))
    )
    page = sign_in("adv_viewer_3_x").get("/jobs/sample/trials/5").text
    assert '<a href="/jobs/sample/trials/4">trial 4</a> comes to the same and was raced for both' in page
    for untrue in (
        "No block of it",
        "PyTorch",
        "Not shown",
        "slowest",
        "ineffective",
        "chip-bad",
        "chip-caution",
    ):
        assert untrue not in page, untrue


def test_trial_that_was_not_measured_misses_nothing() -> None:
    history = make_finished_story(NOW).history
    page = view_trial_page(history.trial(6), history)
    assert (page.missing, page.rank_map, page.steps) == ((), None, None)
