"""Which settings carry the winner's gain: races part them, and the core is the least that holds all but `min_gain`."""

import math
from collections.abc import Mapping

import pytest

from advisor.protocol.asked.jobs import Budget, Stage
from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Outcome, Purpose
from advisor.tuning.decisions import Candidate, Race
from advisor.tuning.search.shares import Shares
from advisor.tuning.search.state import SearchState, look
from advisor.tuning.stages.trimming import next_trimming
from advisor.tuning.stages.turns import Turn
from tests.unit.tuning.raced import BASE, Raced
from tests.unit.tuning.simulated_cluster import make_job, make_spec

SIZE: dict[str, Value] = {"fuse_grad_size_in_MB": 4.0}
THREADS: dict[str, Value] = {"num_threads": 2}
GARBAGE: dict[str, Value] = {"num_iteration_per_drop_scope": 30}
WINNER: dict[str, Value] = {**SIZE, **THREADS}


def begun(winner: Mapping[str, Value], gain: float, seconds: float = 1000, spread: float = 0.01) -> Raced:
    """The search is over, and saw the winner only."""
    job = make_job(make_spec(budget=Budget(max_trials=4, max_seconds=seconds)))
    return Raced(job, spread).launch().race(BASE).race(BASE, (Purpose.SEARCH, winner, gain))


def find_core(raced: Raced, winner: Mapping[str, Value]) -> Changes:
    state = look(raced.record)
    assert state is not None
    return Shares(state, Changes(winner)).find_core()


def ask(raced: Raced, winner: Mapping[str, Value]) -> Turn | None:
    state = look(raced.record)
    assert state is not None
    chosen = Candidate(Purpose.CONFIRM, Changes(winner), "The search's choice.")
    return next_trimming(state, chosen, raced.sessions[-1])


def test_the_winner_races_its_parts() -> None:
    turn = ask(begun(WINNER, 0.2), WINNER)

    assert turn is not None
    assert isinstance(turn.race, Race)
    assert (turn.stage, turn.fresh) == (Stage.TRIM, False)
    assert dict(turn.arms[0].changes) == WINNER
    assert {arm.changes for arm in turn.arms[1:]} == {Changes(SIZE), Changes(THREADS)}
    assert {arm.purpose for arm in turn.arms} == {Purpose.REVERT}
    assert turn.race.rules.give_up_ratio is None


def test_a_setting_that_brings_nothing_is_not_in_the_core() -> None:
    raced = begun(WINNER, 0.2).race(
        (Purpose.REVERT, WINNER, 0.2), (Purpose.REVERT, SIZE, 0.2), (Purpose.REVERT, THREADS, 0.0)
    )

    assert find_core(raced, WINNER) == SIZE
    assert ask(raced, WINNER) is None, "nothing is open any more"


def test_a_setting_of_which_nothing_is_known_is_held_to_bring_nothing() -> None:
    """The search saw one setting alone bring all that the whole brings."""
    raced = begun(WINNER, 0.2).race(BASE, (Purpose.SEARCH, SIZE, 0.2), (Purpose.SEARCH, WINNER, 0.2))

    assert find_core(raced, WINNER) == SIZE


def test_what_brings_less_than_a_gain_worth_a_change_goes_back() -> None:
    raced = begun(WINNER, 0.2, spread=0.001)
    for _ in range(2):
        raced.race(
            (Purpose.REVERT, WINNER, 0.2), (Purpose.REVERT, SIZE, 0.197), (Purpose.REVERT, THREADS, 0.003)
        )

    assert find_core(raced, WINNER) == SIZE


def test_two_settings_that_both_help_are_both_in_the_core() -> None:
    raced = begun(WINNER, 0.2).race(
        (Purpose.REVERT, WINNER, 0.2), (Purpose.REVERT, SIZE, 0.15), (Purpose.REVERT, THREADS, 0.05)
    )

    assert find_core(raced, WINNER) == WINNER


def test_a_slow_mood_of_the_machine_in_one_race_carries_nothing() -> None:
    """All arms of the second race run at half the speed; what they differ by is the threads' doing."""
    raced = begun(WINNER, 0.2).race(BASE, (Purpose.SEARCH, SIZE, 0.0))
    raced.race((Purpose.REVERT, WINNER, -0.5), (Purpose.REVERT, THREADS, -0.5), (Purpose.REVERT, SIZE, -0.7))

    assert find_core(raced, WINNER) == THREADS


def test_what_other_strategies_show_of_a_setting_tells_which_carries_a_large_gain() -> None:
    """The winner raced once, as a whole; strategies with a setting beside that it does not hold had one of its own."""
    raced = begun(WINNER, 1.5)
    raced.race(
        BASE, (Purpose.SEARCH, {**THREADS, **GARBAGE}, 1.5), (Purpose.SEARCH, {**SIZE, **GARBAGE}, 0.0)
    )

    assert find_core(raced, WINNER) == THREADS


def test_of_settings_of_which_none_is_shown_to_help_one_stays() -> None:
    raced = begun(WINNER, 0.0).race(
        (Purpose.REVERT, WINNER, 0.0), (Purpose.REVERT, SIZE, 0.0), (Purpose.REVERT, THREADS, 0.0)
    )

    assert len(find_core(raced, WINNER)) == 1


def test_many_settings_are_left_out_in_groups() -> None:
    winner: dict[str, Value] = {
        **WINNER, **GARBAGE, "batched_grad_copy": True, "last_comm_group_size_MB": 4.0,
        "fuse_grad_size_in_TFLOPS": 5.0,
    }  # fmt: skip
    turn = ask(begun(winner, 0.2), winner)

    assert turn is not None
    assert len(turn.arms) == 5
    gone = [set(winner) - set(arm.changes) for arm in turn.arms[1:]]
    assert set().union(*gone) == set(winner)


def test_trimming_takes_no_time_that_the_verdict_needs() -> None:
    assert ask(begun(WINNER, 0.2, seconds=60), WINNER) is None


def test_the_same_plan_in_force_without_a_setting_leaves_it_out() -> None:
    raced = begun(WINNER, 0.2).race(
        (Purpose.REVERT, WINNER, 0.2), (Purpose.REVERT, SIZE, 0.2), same_as="b3", steps=0, step_time_s=()
    )

    assert find_core(raced, WINNER) == SIZE


def test_what_failed_is_not_what_the_trimming_leaves() -> None:
    raced = begun(WINNER, 0.2).race(
        (Purpose.REVERT, WINNER, 0.2), (Purpose.REVERT, SIZE, 0.2), (Purpose.REVERT, THREADS, 0.0)
    )
    raced.close(Purpose.REVERT, SIZE, Outcome.CRASHED)

    assert find_core(raced, WINNER) == WINNER


@pytest.mark.parametrize("winner", [SIZE, THREADS])
def test_a_winner_of_one_setting_is_not_trimmed(winner: dict[str, Value]) -> None:
    assert ask(begun(winner, 0.2), winner) is None


def test_what_noise_leaves_settings_to_be_expected_to_bring_keeps_none_of_them() -> None:
    """Each of them may bring something, so that something is expected; more likely they bring nothing."""
    winner = {**WINNER, **GARBAGE, "nccl_comm_num": 2}
    raced = begun(winner, 1.2, spread=0.5).race(BASE, (Purpose.SEARCH, THREADS, 0.9))
    state = look(raced.record)
    assert state is not None
    shares = Shares(state, Changes(winner))

    assert shares.expect(winner) - shares.expect(THREADS) > shares.least
    assert find_core(raced, winner) == THREADS


@pytest.mark.parametrize(("together", "core"), [(0.02, THREADS), (0.2, WINNER)])
def test_what_a_model_predicts_within_its_own_error_keeps_no_setting(
    together: float, core: dict[str, Value], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It misses its measurements by a tenth: what it says of settings together is known from there on."""

    class Predicting:
        residual = 0.1

        def predict_baseline_s(self) -> float:
            return 1.0

        def predict_many(self, values: list[dict[str, Value]]) -> list[float]:
            held = {**SIZE, **THREADS}.items()
            return [math.exp(-together) if held <= each.items() else 1.0 for each in values]

    monkeypatch.setattr(SearchState, "model", Predicting())
    raced = begun(WINNER, 0.3 + (together if together > 0.1 else 0.0)).race(
        BASE, (Purpose.SEARCH, THREADS, 0.3)
    )

    assert find_core(raced, WINNER) == core


def test_a_mood_of_the_baseline_alone_carries_no_setting() -> None:
    """Where the baseline is in its slow mood all other arms look better, whatever they hold."""
    winner = {**THREADS, **GARBAGE}
    raced = begun(THREADS, 0.3, spread=0.02)
    for level, changes in ((0.0, THREADS), (-0.6, THREADS), (0.0, THREADS), (-0.6, winner)):
        raced = raced.race((Purpose.BASELINE, {}, level), (Purpose.SEARCH, changes, 0.3))

    assert find_core(raced, winner) == THREADS
