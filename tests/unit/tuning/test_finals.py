"""The finals: sequential halving with the baseline in every round, scaled down for short budgets."""

import math
from collections import Counter

import pytest

from advisor.protocol.advice import Advice
from advisor.protocol.base import Value
from advisor.protocol.jobs import Budget
from advisor.protocol.trials import Outcome, Purpose
from advisor.tuning.contender import Contender
from advisor.tuning.finals import choose_finalist, rank_for_finals, search_as_it_ended
from advisor.tuning.record import Record
from advisor.tuning.search import SearchOver

from .simulated_cluster import QUIET, Changes, Noise, SimulatedCluster, make_job, make_spec

SIZES = (1.0, 2.0, 4.0, 8.0, 12.0, 16.0)
TRUTH = {1.0: 1.02, 2.0: 1.06, 4.0: 1.10, 8.0: 1.08, 12.0: 1.04, 16.0: 1.03}
WANTED: list[dict[str, Value]] = [{"fuse_grad_size_in_MB": size} for size in SIZES]
NOISY = Noise(step=0.03, block=0.01, session=0.0, drift=0.002, spikes=0.0)


def speed_of(changes: Changes) -> float:
    return TRUTH.get(float(changes.get("fuse_grad_size_in_MB", 25.0)), 1.0)


@pytest.fixture(autouse=True)
def searched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Value]]:
    """A search of six sizes, ranked by what each of them measured."""
    strategies = [dict(changes) for changes in WANTED]

    def next_strategy(record: Record, _space: object) -> Contender | SearchOver:
        tried = record.trials_for(Purpose.SEARCH)
        for trial in tried:
            if not record.has_failed(trial) and record.settled(trial) is None:
                return Contender(Purpose.SEARCH, trial.changes, trial.because)
        left = [changes for changes in strategies if changes not in [t.changes for t in tried]]
        return Contender(Purpose.SEARCH, left[0], "As told.") if left else SearchOver("All is tried.")

    for module in ("planner", "advice"):
        monkeypatch.setattr(f"advisor.tuning.{module}.next_strategy", next_strategy)
    return strategies


def tune(noise: Noise = QUIET, seed: int = 0, max_seconds: float = 1e6, **fields: object) -> SimulatedCluster:
    job = make_job(make_spec(budget=Budget(max_trials=16, max_seconds=max_seconds), seed=seed))
    return SimulatedCluster(job, speed=speed_of, noise=noise, seed=seed, **fields)  # type: ignore[arg-type]


def rounds_of(sim: SimulatedCluster) -> dict[int, Counter[Purpose]]:
    """Who takes part in each round of the finals."""
    finals = {t.number for t in sim.trials if t.purpose is Purpose.FINAL}
    last = max((b.round or 0 for b in sim.blocks if b.trial_number in finals), default=0)
    held: dict[int, Counter[Purpose]] = {}
    for block in sim.blocks:
        if block.round is not None and block.round <= last:
            held.setdefault(block.round, Counter())[sim.trials[block.trial_number].purpose] += 1
    return held


def test_five_are_halved_to_three_to_two_to_one_with_the_baseline_in_every_round() -> None:
    sim = tune(Noise(step=0.05, block=0.03, session=0.0, drift=0.0, spikes=0.0), seed=3)
    sim.run()
    held = rounds_of(sim)
    counts = [held[number][Purpose.FINAL] for number in sorted(held)]
    assert counts[:2] == [5, 5]
    assert counts == sorted(counts, reverse=True)
    assert all(count <= 3 for count in counts[2:])
    assert all(count <= 2 for count in counts[5:])
    assert len(counts) <= 9
    assert all(held[number][Purpose.BASELINE] == 1 for number in held)


def test_who_is_far_behind_is_out_at_once() -> None:
    sim = tune()
    sim.run()
    # In a quiet cluster four of the five trail by many standard errors after the first leg.
    assert len(rounds_of(sim)) == 2
    winner = choose_finalist(Record(sim.job, sim.history, sim.now))
    assert winner is not None
    assert winner.changes == {"fuse_grad_size_in_MB": 4.0}


def test_the_order_within_a_round_is_chance_and_the_same_again() -> None:
    orders = []
    for _ in range(2):
        sim = tune(NOISY, seed=5)
        sim.run()
        orders.append([(b.round, b.trial_number) for b in sim.blocks])
    assert orders[0] == orders[1]
    first, second = ([n for r, n in orders[0] if r == number] for number in (1, 2))
    assert sorted(first) == sorted(second)
    assert first != second


def test_the_finals_find_a_better_strategy_than_the_search_alone() -> None:
    """Mean loss of the chosen strategy over 12 seeds; both see the very same search blocks."""
    alone, finals = [], []
    for seed in range(12):
        sim = tune(NOISY, seed=seed)
        sim.run()
        record = Record(sim.job, sim.history, sim.now)
        best, chosen = rank_for_finals(record)[0][1], choose_finalist(record)
        assert chosen is not None
        alone.append(math.log(1.10 / speed_of(best.changes)))
        finals.append(math.log(1.10 / speed_of(chosen.changes)))
    assert sum(finals) <= sum(alone)
    # Nine rounds of a block with 1 % luck: 0.5 % standard error of a difference of means; three of them.
    assert sum(finals) / len(finals) < 0.015


@pytest.mark.parametrize(("max_seconds", "most"), [(50, 0), (110, 3), (150, 5)])
def test_a_short_budget_has_smaller_finals_and_still_a_confirmation(max_seconds: float, most: int) -> None:
    sim = tune(NOISY, max_seconds=max_seconds)
    advice = sim.run()
    assert isinstance(advice, Advice)
    assert max((held[Purpose.FINAL] for held in rounds_of(sim).values()), default=0) <= most
    assert advice.cost.wall_s <= max_seconds * 1.05 + 2
    if rounds_of(sim):
        assert advice.gain is not None


def test_a_finalist_that_fails_is_out() -> None:
    def fault(_session: int, _ordinal: int, changes: Changes) -> Outcome | None:
        in_finals = any(t.purpose is Purpose.FINAL for t in sim.trials)
        fatal = in_finals and changes == {"fuse_grad_size_in_MB": 4.0}
        return Outcome.OUT_OF_MEMORY if fatal else None

    sim = tune(session_fault=fault)
    advice = sim.run()
    assert isinstance(advice, Advice)
    assert advice.changes == {"fuse_grad_size_in_MB": 8.0}


def test_the_smaller_of_two_equals_wins(searched: list[dict[str, Value]]) -> None:
    searched[:] = [
        {"fuse_grad_size_in_MB": 4.0, "nccl_comm_num": 2, "num_iteration_per_drop_scope": 30},
        {"fuse_grad_size_in_MB": 4.0},
    ]
    sim = tune()
    sim.run()
    winner = choose_finalist(Record(sim.job, sim.history, sim.now))
    assert winner is not None
    assert winner.changes == {"fuse_grad_size_in_MB": 4.0}
    assert len(rounds_of(sim)) == 2, "equals need no further rounds"


def test_what_is_measured_later_does_not_change_what_the_search_found() -> None:
    sim = tune(NOISY, seed=1)
    seen: set[tuple[int, ...]] = set()
    for _ in range(200):
        decision = sim.step()
        record = Record(sim.job, sim.history, sim.now)
        if any(block.round is not None for block in sim.blocks):
            seen.add(tuple(trial.number for _, trial in rank_for_finals(record)))
        if decision.stage.value == "done":
            break
    assert len(seen) == 1
    ended = search_as_it_ended(Record(sim.job, sim.history, sim.now))
    assert {t.purpose for t in ended.history.trials} == {Purpose.BASELINE, Purpose.SEARCH}
    assert ended.spent_s < Record(sim.job, sim.history, sim.now).spent_s
