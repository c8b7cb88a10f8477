"""Taking needless knobs back: on evidence that they do not help, never for want of it."""

import pytest

from advisor.protocol.asked.jobs import Budget, Stage
from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Outcome, Purpose
from advisor.tuning.decisions import Candidate, Race
from advisor.tuning.explain.knob_effects import list_evidence, list_taken_back
from advisor.tuning.search.state import look
from advisor.tuning.stages.trimming import NEGLIGIBLE, Trimming, choose_trimmed, next_trimming, trim
from advisor.tuning.stages.turns import Turn
from tests.unit.tuning.raced import BASE, Raced
from tests.unit.tuning.simulated_cluster import make_job, make_spec

SIZE: dict[str, Value] = {"fuse_grad_size_in_MB": 4.0}
THREADS: dict[str, Value] = {"num_threads": 2}
WINNER: dict[str, Value] = {**SIZE, **THREADS}
CHOSEN = Candidate(Purpose.CONFIRM, Changes(WINNER), "The search's choice.")


def begun(seconds: float = 1000, spread: float = 0.01) -> Raced:
    """The search is over."""
    job = make_job(make_spec(budget=Budget(max_trials=4, max_seconds=seconds)))
    return Raced(job, spread).launch().race(BASE).race(BASE, (Purpose.SEARCH, WINNER, 0.2))


def raced_without(
    brings_size: float, brings_threads: float, spread: float = 0.01, cycles: int = 16, races: int = 2
) -> Raced:
    """The winner beside itself without each of its knobs."""
    raced = begun(spread=spread)
    total = brings_size + brings_threads
    for _ in range(races):
        raced.race(
            (Purpose.REVERT, WINNER, total),
            (Purpose.REVERT, THREADS, total - brings_size),
            (Purpose.REVERT, SIZE, total - brings_threads),
            cycles=cycles,
        )
    return raced


def decide(raced: Raced) -> Trimming:
    state = look(raced.record)
    assert state is not None
    found = trim(raced.record, state.space, CHOSEN)
    assert found is not None
    return found


def ask(raced: Raced) -> Turn | None:
    state = look(raced.record)
    assert state is not None
    return next_trimming(raced.record, state.space, CHOSEN, raced.sessions[-1])


def test_the_winner_races_itself_without_each_of_its_knobs() -> None:
    turn = ask(begun())

    assert turn is not None
    assert isinstance(turn.race, Race)
    assert (turn.stage, turn.fresh) == (Stage.SIMPLIFY, False)
    assert [dict(arm.changes) for arm in turn.arms] == [WINNER, THREADS, SIZE]
    assert {arm.purpose for arm in turn.arms} == {Purpose.REVERT}
    assert turn.race.rules.give_up_ratio is None


def test_a_knob_that_is_shown_useless_goes_back_and_the_others_stay() -> None:
    found = decide(raced_without(0.2, 0.0))

    assert found.winner == SIZE
    taken = {removal.knobs: removal for removal in found.removals}
    assert taken["num_threads",].is_taken_back
    assert not taken["fuse_grad_size_in_MB",].is_taken_back
    brings = taken["fuse_grad_size_in_MB",].brings
    assert brings is not None
    assert brings.low > NEGLIGIBLE
    assert brings.mean == pytest.approx(0.2, abs=0.02)


def test_a_knob_that_cannot_be_judged_stays() -> None:
    found = decide(raced_without(0.2, 0.0, spread=0.3, cycles=3))

    assert found.winner == WINNER


def test_a_knob_that_brings_something_stays() -> None:
    assert decide(raced_without(0.2, 0.03)).winner == WINNER


def test_knobs_of_which_none_is_shown_to_help_do_not_all_go() -> None:
    found = decide(raced_without(0.0, 0.0))

    assert len(found.winner) == 1


def test_a_knob_that_stays_is_never_told_as_taken_back() -> None:
    raced = raced_without(0.0, 0.0)
    state = look(raced.record)
    assert state is not None
    advised = decide(raced).winner

    taken = list_taken_back(raced.record, state.space, advised)
    assert {name for _, evidence in taken for name in evidence.knobs} == WINNER.keys() - advised.keys()
    kept = list_evidence(raced.record, state.space, advised, None)
    assert {name for evidence in kept for name in evidence.knobs} <= advised.keys()


def test_what_two_races_leave_open_is_not_raced_again() -> None:
    once, twice = (raced_without(0.2, 0.006, spread=0.1, cycles=4, races=n) for n in (1, 2))

    turn = ask(once)

    assert turn is not None
    assert SIZE in [dict(arm.changes) for arm in turn.arms]
    assert ask(twice) is None


def test_decided_knobs_are_not_raced_again() -> None:
    assert ask(raced_without(0.2, 0.05)) is None


def test_trimming_takes_no_time_that_the_verdict_needs() -> None:
    assert ask(begun(seconds=60)) is None


def test_the_same_plan_in_force_without_a_knob_takes_it_back_at_once() -> None:
    raced = begun().race(
        (Purpose.REVERT, WINNER, 0.2), (Purpose.REVERT, SIZE, 0.2), same_as="b3", steps=0, step_time_s=()
    )

    assert decide(raced).winner == SIZE
    assert [removal.is_open for removal in decide(raced).removals] == [False], "it need not race again"


def test_what_was_given_up_in_the_search_is_not_what_the_trimming_leaves() -> None:
    """Size and garbage collection bring nothing; the search gave the threads up without them."""
    winner: dict[str, Value] = {**WINNER, "num_iteration_per_drop_scope": 30}
    job = make_job(make_spec(budget=Budget(max_trials=6, max_seconds=1000)))
    raced = Raced(job, 0.002).launch().race(BASE)
    raced.race(BASE, (Purpose.SEARCH, winner, 0.2), (Purpose.SEARCH, THREADS, 0.1))
    raced.close(Purpose.SEARCH, THREADS, Outcome.PRUNED)
    raced.race(
        (Purpose.REVERT, winner, 0.2),
        (Purpose.REVERT, {n: v for n, v in winner.items() if n not in SIZE}, 0.2),
        (Purpose.REVERT, WINNER, 0.2),
        (Purpose.REVERT, {n: v for n, v in winner.items() if n not in THREADS}, 0.0),
    )
    state = look(raced.record)
    assert state is not None
    found = trim(
        raced.record, state.space, Candidate(Purpose.CONFIRM, Changes(winner), "The search's choice.")
    )

    assert found is not None
    assert len(found.winner) == 2
    assert THREADS.items() < found.winner.items()


def test_a_part_that_is_the_same_as_another_part_stands_or_falls_with_it() -> None:
    """Without its threads the winner is what it is without its size, which is shown to cost 20 %."""
    raced = begun(spread=0.002)
    raced.race((Purpose.REVERT, WINNER, 0.2), (Purpose.REVERT, THREADS, 0.0))
    raced.race(
        (Purpose.REVERT, WINNER, 0.2), (Purpose.REVERT, SIZE, 0.0), same_as="b4", steps=0, step_time_s=()
    )

    trimmed = decide(raced)
    assert trimmed.winner == WINNER
    assert [removal.brings is not None and removal.brings.low > 0.1 for removal in trimmed.removals] == [
        True,
        True,
    ]


def test_a_winner_of_one_knob_is_not_trimmed() -> None:
    state = look(begun().record)
    assert state is not None
    alone = Candidate(Purpose.CONFIRM, Changes(SIZE), "One knob.")

    assert next_trimming(state.record, state.space, alone, begun().sessions[-1]) is None


def test_a_winner_that_trimming_reduced_to_the_scripts_own_plan_is_confirmed_as_it_was_found() -> None:
    """Two parts bring nothing, and one of them alone is, in force, what the script does already."""
    raced = (
        Raced(make_job(make_spec(budget=Budget(max_trials=4, max_seconds=400))), 0.002).launch().race(BASE)
    )
    raced.race(BASE, (Purpose.SEARCH, WINNER, 0.004)).race(
        (Purpose.REVERT, WINNER, 0.004), (Purpose.REVERT, SIZE, 0.006), (Purpose.REVERT, THREADS, 0.004)
    )
    state = look(raced.record)
    assert state is not None
    smaller = choose_trimmed(state)
    assert smaller is not None
    assert smaller.changes != WINNER

    raced.launch().race(BASE, (Purpose.CONFIRM, smaller.changes, 0.0), same_as="b5", steps=0, step_time_s=())
    raced.close(Purpose.CONFIRM, smaller.changes, Outcome.INEFFECTIVE)
    state = look(raced.record)
    assert state is not None
    whole = choose_trimmed(state)
    assert whole is not None
    assert whole.changes == WINNER
