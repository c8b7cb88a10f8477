"""The headline and the line that says what to do, for every case of an answer."""

from dataclasses import replace

import pytest

from advisor.protocol.answers.advice import Action, Interval, Verdict
from advisor.protocol.gains import say_smallest_gain
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes
from advisor.tuning.explain.headline import Grounds, say_headline
from advisor.tuning.history.ended_search import Others

WIDE = Interval(ratio=3.4, low=0.9, high=12.0, rounds=4, sessions=2)
SURE = Interval(ratio=3.1, low=1.8, high=5.4, rounds=8, sessions=2)
SMALL = Interval(ratio=1.035, low=1.011, high=1.06, rounds=8, sessions=4)
NOTHING = Interval(ratio=0.998, low=0.988, high=1.008, rounds=8, sessions=4)
GROUNDS = Grounds("job1", Verdict.CHANGE, 0.01, changes=Changes({"num_threads": 1}), interval=SURE, tried=12)


def undecided(**fields: object) -> Grounds:
    return replace(GROUNDS, verdict=Verdict.UNDECIDED, **fields)  # type: ignore[arg-type]


def kept(**fields: object) -> Grounds:
    return replace(GROUNDS, verdict=Verdict.KEEP, **fields)  # type: ignore[arg-type]


def test_change_leads_with_the_bound() -> None:
    answer = say_headline(GROUNDS)
    assert answer.headline == (
        "At least 1.8x faster, most likely 3.1x (95 % CI 1.8x … 5.4x) with num_threads 1."
    )
    assert answer.action is Action.USE
    assert "advisor export job1" in answer.what_to_do


def test_small_change_is_told_in_per_cent() -> None:
    headline = say_headline(replace(GROUNDS, interval=SMALL)).headline
    assert headline.startswith("Faster: at least +1.1 %, most likely +3.5 % (95 % CI +1.1 … +6.0 %)")


def test_change_whose_rounding_nobody_verified_says_so_and_asks_for_a_comparison() -> None:
    answer = say_headline(replace(GROUNDS, effect=Effect.NUMERIC, is_verified=False, guard="Too few losses."))
    assert "its effect on the accuracy is not verified" in answer.headline
    assert "Compare the accuracy of one full training" in answer.what_to_do


def test_keep_says_what_is_excluded() -> None:
    answer = say_headline(kept(interval=NOTHING))
    assert answer.headline.startswith(
        "Keep your settings: the strategy that looked best, num_threads 1, brings less than 1 %: −0.2 % measured"
    )
    assert (answer.action, answer.what_to_do) == (Action.KEEP, "Change nothing.")


@pytest.mark.parametrize(
    ("others", "told"),
    [
        (None, "+0.8 %."),
        (
            Others(9, 0.018, 0.036),
            "The 9 others that the search measured looked no better than +1.8 %; gains up to +3.7",
        ),
        (
            Others(1, -0.01, 0.004),
            "The other one that the search measured looked no better than −1.0 %; gains up to +0",
        ),
        (Others(2, -0.4, -0.1), "The 2 others that the search measured were slower."),
    ],
)
def test_keep_says_what_the_search_leaves_open_of_the_others(others: Others | None, told: str) -> None:
    assert told in say_headline(kept(interval=NOTHING, others=others)).headline


@pytest.mark.parametrize(
    ("grounds", "told"),
    [
        (kept(interval=None, no_knob=True), "no knob that the job allows can matter here"),
        (kept(interval=None, given_up=12), "all 12 strategies tried were slower"),
        (kept(interval=None, tried=1, given_up=1), "the one strategy tried was slower"),
        (
            kept(interval=Interval(ratio=0.9, low=0.85, high=0.95, rounds=8, sessions=2)),
            "num_threads 1, is not faster",
        ),
        (kept(effect=Effect.NUMERIC, is_harmful=True, guard="The loss guard refuses it."), "refuses it."),
    ],
)
def test_keep_gives_its_reason(grounds: Grounds, told: str) -> None:
    answer = say_headline(grounds)
    assert answer.headline.startswith("Keep your settings:")
    assert told in answer.headline
    assert answer.action is Action.KEEP


def test_likely_gain_that_is_not_proven_says_how_to_continue() -> None:
    answer = say_headline(undecided(interval=WIDE, more_s=600.0))
    assert answer.headline == (
        "Probably faster (measured too roughly for a figure) with num_threads 1, not proven yet: the interval still "
        "reaches no gain."
    )
    assert answer.what_to_do == (
        "Continue, nothing measured is lost: `advisor tune --continue job1 --minutes 10`"
    )
    assert (answer.action, answer.continue_s) == (Action.CONTINUE, 600.0)


def test_gain_above_no_gain_that_is_not_proven_says_why() -> None:
    once = Interval(ratio=15.0, low=2.9, high=79.0, rounds=8, sessions=1)
    headline = say_headline(undecided(interval=once, unproven="one launch raced it")).headline
    assert headline == (
        "Probably faster (at least 2.9x faster, measured too roughly to say how much more) with num_threads 1, not "
        "proven yet: one launch raced it."
    )


def test_nothing_likely_tells_what_the_budget_could_find() -> None:
    flat = Interval(ratio=0.999, low=0.95, high=1.05, rounds=4, sessions=2)
    answer = say_headline(undecided(interval=flat, smallest_gain=0.04))
    assert "No difference shown yet (−0.1 % measured, 95 % CI −5.0 … +5.0 %)" in answer.headline
    assert answer.headline.endswith(say_smallest_gain(0.04))


def test_gain_that_may_be_too_small_is_not_called_proven() -> None:
    little = Interval(ratio=1.008, low=1.002, high=1.014, rounds=8, sessions=4)
    assert "perhaps by less than the 1 % worth a change" in say_headline(undecided(interval=little)).headline


@pytest.mark.parametrize(
    ("grounds", "told"),
    [
        (undecided(interval=None, tried=0, ended_by="the budget of 60 s ended"), "budget of 60 s ended before any"),
        (undecided(interval=None, none_promised=True), "none of the 12 strategies tried looked faster"),
        (
            undecided(interval=None, none_promised=True, fallen="servers 2 crashed"),
            "Not decided: servers 2 crashed when it was to be confirmed.",
        ),
        (undecided(interval=None, given_up=12), "all 12 strategies tried were slower, and the budget ended"),
        (undecided(interval=None), "before the best of 12 strategies (num_threads 1) was held against"),
        (undecided(interval=None, tried=1, changes=Changes()), "before the strategy was held against"),
        (undecided(interval=None, is_check=True), "the budget ended before num_threads 1 was held against your"),
    ],
)  # fmt: skip
def test_nothing_measured_says_what_happened_and_how_to_continue(grounds: Grounds, told: str) -> None:
    answer = say_headline(grounds)
    assert answer.headline.startswith("Not decided: ")
    assert told in answer.headline
    assert "advisor tune --continue job1 --minutes 5" in answer.what_to_do


@pytest.mark.parametrize(
    ("grounds", "told"),
    [
        (undecided(interval=None, tried=1, failed=("crashed",)), "num_threads 1 crashed."),
        (undecided(interval=None, tried=1, failed=("hung",), changes=Changes()), "the one strategy tried hung."),
        (undecided(interval=None, tried=1, failed=("ran out of memory",), is_check=True), "num_threads 1 ran out"),
        (
            undecided(interval=None, tried=4, failed=("hung", "crashed", "crashed"), given_up=1),
            "none of the 4 strategies tried can be used: 2 crashed, 1 hung, 1 was slower.",
        ),
        (undecided(interval=None, tried=4, failed=("crashed",)), "the budget ended before the best of 4"),
    ],
)  # fmt: skip
def test_strategies_that_failed_are_not_said_to_have_lacked_time(grounds: Grounds, told: str) -> None:
    assert f"Not decided: {told}" in say_headline(grounds).headline


def test_faster_strategy_of_unverified_accuracy_is_neither_advised_nor_dismissed() -> None:
    grounds = undecided(effect=Effect.CONVERGENCE, is_verified=False, guard="No checkpoint was given.")
    answer = say_headline(grounds)
    assert answer.headline.startswith("Faster, accuracy unverified: at least 1.8x faster")
    assert answer.headline.endswith("No checkpoint was given.")
    assert answer.action is Action.CHECK_ACCURACY
    assert "until one full training" in answer.what_to_do


@pytest.mark.parametrize("effect", [Effect.NUMERIC, Effect.CONVERGENCE])
def test_what_lacks_a_launch_is_continued_rather_than_said_to_lack_accuracy(effect: Effect) -> None:
    one_launch = "one launch raced it, and a verdict needs 2"
    answer = say_headline(
        undecided(effect=effect, is_verified=False, unproven=one_launch, guard="Too few losses.")
    )
    assert answer.headline.startswith("Probably faster")
    assert one_launch in answer.headline
    assert answer.action is Action.CONTINUE


def test_losses_do_not_stand_in_the_way_of_a_numeric_strategy_that_they_do_not_refuse() -> None:
    numeric = undecided(effect=Effect.NUMERIC, is_verified=False, guard="Too few losses.")
    assert say_headline(numeric).action is Action.CONTINUE
    assert say_headline(replace(numeric, is_harmful=True)).action is Action.CHECK_ACCURACY


def test_testbed_is_always_named() -> None:
    for grounds in (GROUNDS, kept(interval=NOTHING), undecided(interval=WIDE)):
        assert say_headline(replace(grounds, where="a testbed")).headline.endswith(" Measured on a testbed.")


def test_every_answer_says_what_to_do_in_one_line() -> None:
    for grounds in (GROUNDS, kept(interval=NOTHING), undecided(interval=WIDE), undecided(interval=None)):
        assert say_headline(grounds).what_to_do
        assert "\n" not in say_headline(grounds).what_to_do


@pytest.mark.parametrize(("smallest", "told"), [(0.021, "gains from 2.1 % on"), (0.8, "gains from 80 % on")])
def test_smallest_gain_says_what_the_budget_is_good_for(smallest: float, told: str) -> None:
    assert say_smallest_gain(smallest).startswith(f"This budget can find {told}")


@pytest.mark.parametrize(
    "fields", [{"interval": None}, {"interval": WIDE}, {"interval": None, "failed": ("crashed",) * 12}]
)
def test_what_the_script_does_by_itself_is_told_before_everything_else(fields: dict[str, object]) -> None:
    why = "The script itself hangs after about 300 steps (train.py:7)."
    answer = say_headline(undecided(reason=why, is_scripts=True, **fields))
    assert "he script itself hangs after about 300 steps (train.py:7)." in answer.headline
    assert answer.action is Action.MEND_SCRIPT
    assert answer.what_to_do.startswith("Mend the script")
    assert answer.continue_s is None


def test_a_noisy_machine_is_told_with_its_figure_where_nothing_was_held_against_the_baseline() -> None:
    why = "The machine is too noisy: the baseline alone varied by 25 % from launch to launch."
    answer = say_headline(undecided(interval=None, reason=why))
    assert answer.headline.startswith(
        "Not decided: the machine is too noisy: the baseline alone varied by 25 %"
    )
    assert answer.action is Action.CONTINUE
