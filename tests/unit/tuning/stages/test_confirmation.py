"""The verdict: what fresh launches say together, when it is over, and what a continuation keeps."""

from datetime import timedelta

import pytest

from advisor.protocol.asked.jobs import Budget, Stage
from advisor.protocol.base import Value
from advisor.protocol.kinds import Allow, Effect
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import BlockState, Outcome, Purpose
from advisor.tuning.decisions import Candidate, Over
from advisor.tuning.measure.levels import find_level
from advisor.tuning.stages.confirmation import SPENT, confirm, find_confirmed, find_raced, next_confirmation
from advisor.tuning.stages.turns import Next, Turn
from tests.unit.tuning.raced import BASE, Raced
from tests.unit.tuning.simulated_cluster import make_job, make_spec

SMALL: dict[str, Value] = {"fuse_grad_size_in_MB": 4.0}
OTHER: dict[str, Value] = {"fuse_grad_size_in_MB": 2.0}
COLD: dict[str, Value] = {"NCCL_SOCKET_NTHREADS": 4}
WINNER = Candidate(Purpose.CONFIRM, Changes(SMALL), "The search's choice.")


def searched(seconds: float = 300, spread: float = 0.02, **fields: object) -> Raced:
    job = make_job(make_spec(budget=Budget(max_trials=4, max_seconds=seconds)), **fields)
    return Raced(job, spread).launch().race(BASE).race(BASE, (Purpose.SEARCH, SMALL, 0.1))


def launched(raced: Raced, *gains: float, changes: dict[str, Value] = SMALL) -> Raced:
    for gain in gains:
        raced.launch().race(BASE, (Purpose.CONFIRM, changes, gain))
    return raced


def ask(raced: Raced, winner: Candidate | None = WINNER, live: bool = True) -> Next:
    return next_confirmation(raced.record, raced.sessions[-1] if live else None, winner, ())


def test_the_first_race_of_the_verdict_needs_a_fresh_launch() -> None:
    turn = ask(searched())

    assert isinstance(turn, Turn)
    assert turn.fresh
    assert turn.stage is Stage.CONFIRM
    assert [dict(arm.changes) for arm in turn.arms] == [{}, SMALL]


def test_a_launch_that_has_measured_nothing_is_fresh_enough() -> None:
    turn = ask(searched().launch())

    assert isinstance(turn, Turn)
    assert not turn.fresh


def test_one_launch_never_decides() -> None:
    verdict = confirm(launched(searched(), 0.5).record, SMALL, forced=True)

    assert verdict.look is not None
    assert verdict.look.decision is None
    assert not verdict.is_decided


@pytest.mark.parametrize(("gains", "decision"), [((0.3, 0.3), "change"), ((-0.1, -0.1), "keep")])
def test_two_launches_decide_what_is_plain(gains: tuple[float, ...], decision: str) -> None:
    raced = launched(searched(), *gains)
    verdict = confirm(raced.record, SMALL, forced=False)

    assert verdict.look is not None
    assert verdict.look.decision == decision
    assert verdict.is_decided
    assert len(verdict.launches) == 2
    assert isinstance(ask(raced), Over)


def test_launches_that_contradict_each_other_decide_nothing() -> None:
    verdict = confirm(launched(searched(), 0.10, -0.04).record, SMALL, forced=True)

    assert verdict.look is not None
    assert verdict.look.decision is None
    assert verdict.look.low < 0.03 < verdict.look.high


def test_the_first_look_that_decides_stands() -> None:
    verdict = confirm(launched(searched(), 0.3, 0.3, -0.5).record, SMALL, forced=True)

    assert verdict.look is not None
    assert (verdict.look.decision, verdict.look.launches) == ("change", 2)


def test_races_of_one_launch_count_as_one() -> None:
    raced = launched(searched(), 0.1)
    raced.race(BASE, (Purpose.CONFIRM, SMALL, 0.1))

    verdict = confirm(raced.record, SMALL, forced=True)

    assert len(verdict.comparisons) == 2
    assert len(verdict.launches) == 1
    assert verdict.launches[0].cycles == 32


def test_a_budget_that_is_spent_ends_the_verdict() -> None:
    raced = launched(searched(seconds=60), 0.02)

    assert ask(raced, live=False) is SPENT


def test_a_launch_apart_has_its_own_luck_so_that_two_pairs_prove_less() -> None:
    together = launched(searched(), 0.05, 0.05)
    apart = searched()
    for number in (11, 12):
        for arm in ((Purpose.CONFIRM, {}, 0.0), (Purpose.CONFIRM, COLD, 0.05)):
            apart.launch(arm[1]).race(arm, number=number)

    one, other = confirm(together.record, SMALL, forced=True), confirm(apart.record, COLD, forced=True)

    assert one.look is not None
    assert other.look is not None
    assert len(other.launches) == 2
    assert other.look.high - other.look.low > 1.2 * (one.look.high - one.look.low)


def test_the_verdict_is_about_the_strategy_of_its_first_race() -> None:
    raced = launched(searched(), 0.1)

    found = find_confirmed(raced.record)

    assert found is not None
    assert found.changes == SMALL
    assert find_confirmed(searched().record) is None
    assert find_confirmed(raced.close(Purpose.CONFIRM, SMALL, Outcome.HUNG).record) is None


def test_a_rung_that_is_not_allowed_is_never_what_the_verdict_is_about() -> None:
    raced = launched(searched(), 0.1, changes={"fp16_allreduce": True})

    assert raced.job.spec.allow is Allow.EXACT
    assert find_confirmed(raced.record) is None


def test_a_continued_job_keeps_its_launches_and_goes_on_with_what_was_left_open() -> None:
    raced = launched(searched(seconds=2000), 0.03, -0.02)
    raced.launch()
    raced.job = raced.job.model_copy(update={"continued_at": (raced.now,)})

    found = find_confirmed(raced.record)
    assert found is not None
    assert found.changes == SMALL
    assert len(confirm(raced.record, SMALL, forced=False).launches) == 2
    turn = ask(raced)
    assert isinstance(turn, Turn)
    assert "launch 3" in turn.race.because


def continued(raced: Raced) -> Raced:
    """The budget ended, and a larger one begins."""
    raced.now += timedelta(seconds=1)
    budget = raced.job.spec.budget.model_copy(
        update={"max_seconds": raced.job.spec.budget.max_seconds + 2000}
    )
    spec = raced.job.spec.model_copy(update={"budget": budget})
    raced.job = raced.job.model_copy(
        update={"spec": spec, "continued_at": (*raced.job.continued_at, raced.now)}
    )
    return raced


def test_a_job_goes_on_whose_budget_ended_before_its_verdicts_first_launch() -> None:
    raced = continued(searched(seconds=2000))
    verdict = confirm(raced.record, SMALL, forced=False)
    assert (verdict.look, verdict.launches, verdict.guard_level) == (None, (), 0.0)
    turn = ask(raced.launch())
    assert isinstance(turn, Turn)
    assert "launch 1" in turn.race.because


def test_a_continued_job_goes_on_with_the_winner_and_not_with_a_rung_that_raced_behind_it() -> None:
    half: dict[str, Value] = {"fp16_allreduce": True}
    raced = Raced(make_job(make_spec(allow=Effect.NUMERIC)), 0.05).launch().race(BASE)
    raced.launch().race(BASE, (Purpose.CONFIRM, half, 0.02)).race(BASE, (Purpose.CONFIRM, SMALL, 0.01))

    found = find_confirmed(continued(raced).record)
    assert found is not None
    assert found.changes == half


def test_what_a_budget_decided_stays_decided_when_a_larger_one_is_given() -> None:
    raced = launched(searched(seconds=130, spread=0.02), 0.05, 0.051)
    decided = confirm(raced.record, SMALL, forced=True).look
    assert decided is not None
    assert decided.decision == "change"

    verdict = confirm(continued(raced).record, SMALL, forced=False)
    assert verdict.look == decided
    assert find_confirmed(raced.record) is None
    left = find_raced(raced.record)
    assert left is not None
    assert left.changes == SMALL


def test_budgets_without_a_launch_spend_their_part_of_the_error_all_the_same() -> None:
    once = find_level(4, 8, forced=False, ended=(3,))
    twice = find_level(4, 8, forced=False, ended=(3, 3))

    assert 0.0 < twice < once < 0.05
    # A strategy that comes up in the second budget finds what the first one left.
    assert find_level(2, 2, forced=True, ended=(0,)) < 0.2 * find_level(2, 2, forced=True)


def test_a_guard_that_races_on_adds_nothing_to_what_the_interval_stands_on() -> None:
    raced = launched(searched(), 0.3, 0.3, 0.3, 0.3)
    verdict = confirm(raced.record, SMALL, forced=False)

    assert verdict.look is not None
    assert verdict.look.launches == len(verdict.told) == verdict.sessions == 2
    assert len(verdict.launches) == 4


def test_a_verdicts_race_gets_shorter_when_launches_die_in_it() -> None:
    def asked(deaths: int) -> float:
        job = make_job(make_spec(budget=Budget(max_trials=4, max_seconds=2000)))
        raced = Raced(job, 0.1).launch().race(BASE).race(BASE, (Purpose.SEARCH, SMALL, 0.05))
        for _ in range(deaths):
            raced.launch().race(BASE, (Purpose.CONFIRM, SMALL, 0.05))
            broken = {"state": BlockState.VOID, "result": None, "summary": None}
            raced.blocks[-2:] = [b.model_copy(update=broken) for b in raced.blocks[-2:]]
        winner = Candidate(Purpose.CONFIRM, Changes(SMALL), "The search's choice.")
        turn = next_confirmation(raced.launch().record, raced.sessions[-1], winner, ())
        assert isinstance(turn, Turn)
        return turn.race.rules.target_s

    assert asked(1) == pytest.approx(asked(0) / 2, rel=0.1)
    assert asked(2) == pytest.approx(asked(0) / 4, rel=0.1)


@pytest.mark.parametrize(("lead", "is_plain"), [(0.1, False), (0.9, True)])
def test_a_plain_lead_is_raced_no_longer_than_launches_differ_anyway(lead: float, is_plain: bool) -> None:
    job = make_job(make_spec(budget=Budget(max_trials=4, max_seconds=300)))
    raced = Raced(job, 0.02).launch().race(BASE).race(BASE, (Purpose.SEARCH, SMALL, lead))
    turn = ask(raced)

    assert isinstance(turn, Turn)
    enough = turn.race.rules.target_error
    assert enough == (pytest.approx(0.05 * lead, rel=0.1) if is_plain else None)
