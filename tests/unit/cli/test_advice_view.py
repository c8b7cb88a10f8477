"""Everything that an advice holds, as `--verbose` shows it, for every verdict and at the widths of terminals."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from advisor.cli.views.advice_view import format_advice
from advisor.protocol.answers.advice import Advice, DroppedKnob
from advisor.protocol.knobs.changes import Changes
from tests.samples.evidence import make_findings, make_pareto

from .advices import a_change, a_keep, unconfirmed, undecided

WIDTHS = pytest.mark.parametrize("width", [80, 120])


@WIDTHS
@pytest.mark.parametrize("make", [a_change, a_keep, undecided, unconfirmed])
def test_advice_fits_the_width(make: Callable[[], Advice], width: int) -> None:
    lines = format_advice(make(), width, "train", ["advisor-train/strategy.json"], verbose=True).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) > 10


@WIDTHS
def test_verdict_with_its_interval_comes_first(width: int) -> None:
    shown = format_advice(a_change(), width, verbose=True)
    assert " ".join(shown.split()).startswith(
        "Faster: at least +5.9 %, most likely +8.4 % (95 % CI +5.9 … +10.7 %)"
    )


def words_of(advice: Advice) -> str:
    return " ".join(format_advice(advice, 120, verbose=True).split())


def test_the_rate_of_the_script_as_it_stands_is_told() -> None:
    text = words_of(a_change())
    assert "Your settings: 1 586 samples/s." in text


def test_steps_are_told_where_nothing_tells_samples() -> None:
    counted = a_change().model_copy(update={"rate_unit": "steps/s"})
    text = words_of(counted)
    assert "Your settings: 1 586 steps/s." in text
    assert "Nothing tells how many samples a step has (--samples-per-step does): steps are counted." in text
    assert "samples/s" not in text


def test_change_names_every_changed_knob_with_values_and_reason() -> None:
    text = words_of(a_change())
    assert "bucket size 32 MB → 8 MB Smaller buckets start" in text
    assert "fuse_grad_size_in_MB" in text, "Fleet's name stands below"
    assert "one allreduce at a time on → off Lets the two overlap at all. sync_nccl_allreduce" in text


def test_changed_knob_without_a_reason_is_not_hidden() -> None:
    text = words_of(a_change().model_copy(update={"reasons": ()}))
    assert "bucket size 32 MB → 8 MB Part of the strategy" in text


def test_phases_show_both_sides_and_the_difference() -> None:
    text = words_of(a_change())
    assert "exposed communication 14.2 ms 3.1 ms −11.1 █░░░" in text
    assert "one step 161.3 ms 150.1 ms −11.2" in text


def test_higher_rung_stands_apart_with_its_caveat_and_the_way_to_allow_it() -> None:
    text = words_of(a_change())
    verdict, _, ladder = text.partition("What riskier settings measured")
    assert "1.42x" not in verdict
    assert (
        "--allow numeric (changes rounding): at least 1.38x faster, most likely 1.42x (95 % CI 1.38x …"
        in ladder
    )
    assert "--allow numeric" in ladder


def test_unconfirmed_rung_shows_no_figure() -> None:
    change = a_change()
    rung = change.ladder[0].model_copy(update={"gain": None, "sentence": "Was faster in the search."})
    assert "changes rounding): tried, not confirmed" in words_of(
        change.model_copy(update={"ladder": (rung,)})
    )


def test_rung_without_a_candidate_is_one_sentence() -> None:
    rung = (
        a_change().ladder[0].model_copy(update={"gain": None, "changes": {}, "sentence": "Was not measured."})
    )
    text = words_of(a_change().model_copy(update={"ladder": (rung,)}))
    assert "numeric (changes rounding): Was not measured." in text
    assert "your settings But" not in text


def test_keep_is_neutral_and_promises_nothing() -> None:
    text = words_of(a_keep())
    assert "Keep your settings: the strategy that looked best, num_threads 2, brings less than 2 %" in text
    assert "What to change" not in text
    assert "Paid back" not in text
    for word in ("fail", "unfortunately", "sorry", "error"):
        assert word not in text.lower()


def test_unconfirmed_says_that_nothing_is_promised() -> None:
    text = words_of(unconfirmed())
    assert "Nothing was measured often enough to promise a gain" in text
    assert "exposed communication not measured" in text


def test_settings_that_were_not_searched_are_grouped_by_reason() -> None:
    change = a_change()
    assert "amp, dgc: Not varied yet." in words_of(change)
    many = tuple(
        DroppedKnob(
            knob=f"knob_{at}", reason=f"Reason {at // 9}, which takes the better part of a line to tell."
        )
        for at in range(90)
    )
    told = change.model_copy(update={"dropped": many})
    assert "9 settings: Reason 0" in words_of(told)
    assert "54 settings for 6 other reasons" in words_of(told)
    assert "knob_1" not in words_of(told)
    assert len(format_advice(told, 80, verbose=True).splitlines()) <= 60


def test_what_to_do_leads_the_next_steps() -> None:
    _, _, steps = words_of(undecided()).partition("What to do next")
    assert steps.startswith(" · advisor tune --continue job-1 --minutes 10")


def test_markup_in_a_sentence_is_printed_as_it_stands() -> None:
    change = a_change().model_copy(update={"next_steps": ("Use [bold]rank[/bold] [0].",)})
    assert "Use [bold]rank[/bold] [0]." in words_of(change)


def with_evidence() -> Advice:
    change = a_change()
    stalls = {"phases_before": replace(change.phases_before, stalls_s=0.0312)}
    diagnosis = change.diagnosis.model_copy(
        update={"findings": make_findings(), "scaling_before": 0.85, "scaling_after": 0.977}
    )
    return change.model_copy(
        update={
            **stalls, "diagnosis": diagnosis, "left": Changes({"num_iteration_per_drop_scope": 30}),
            "pareto": make_pareto(),
            "search_ended_because": "All 24 search trials of the budget are spent.",
        }
    )  # fmt: skip


@WIDTHS
def test_evidence_fits_the_width(width: int) -> None:
    assert max(map(len, format_advice(with_evidence(), width, verbose=True).splitlines())) <= width


def test_evidence_tells_what_was_left_once_and_why_the_search_ended() -> None:
    text = words_of(with_evidence())
    assert text.count("garbage collected every 30 steps: no difference shown, left as you have it.") == 1
    assert "Why the search ended: All 24 search trials of the budget are spent." in text


def test_stalls_are_a_row_so_that_the_breakdown_adds_up_to_the_mean_step() -> None:
    text = words_of(with_evidence())
    assert "stalls 31.2 ms 0.0 ms −31.2" in text
    assert "one step 192.5 ms 150.1 ms" in text
    assert "stalls" not in words_of(a_change())


def test_findings_tell_their_share_and_scaling_stands_beside_them() -> None:
    text = words_of(with_evidence())
    assert "communication, 15 % of the step, which it bounds: 24.2 of 161.3 ms" in text
    assert "85 % before, 98 % after." in text
