"""What the user named is measured first: whole where the budget holds it, else spread over the space."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from advisor.protocol.answers.advice import Advice, Verdict
from advisor.protocol.asked.jobs import Budget
from advisor.protocol.kinds import Place
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Outcome, Purpose, Session
from advisor.protocol.training.workload import Recomputed, Workload
from advisor.tuning.decisions import Launch, Race
from advisor.tuning.search.named import find_named
from advisor.tuning.space.space import build_space
from tests.unit.tuning.raced import BASE
from tests.unit.tuning.raced import Raced as Written
from tests.unit.tuning.simulated_cluster import QUIET, SimulatedCluster, make_job, make_spec

MICRO = ("--micro=1,2,4,8:exact", "--acc=1,2,4,8:exact")
COMMAND = ("torchrun", "t.py", "--micro", "1", "--acc", "8")
KEPT = "activation_checkpointing"
MS = {1: 43.0, 2: 26.0, 4: 18.6, 8: 27.5}
"""Milliseconds of a step by the micro-batch: the best lies in the middle."""


def by_micro(changes: Changes) -> float:
    return MS[1] / MS[int(changes.get("micro", 1))]


def named_job(
    seconds: float = 300, trials: int = 24, own: tuple[str, ...] = MICRO, command: tuple[str, ...] = COMMAND,
    require: tuple[str, ...] = ("micro * acc == 8",), **fields: Any,
) -> SimulatedCluster:  # fmt: skip
    workload = Workload(command=command, own=own, require=require)
    job = make_job(make_spec(workload=workload, budget=Budget(max_trials=trials, max_seconds=seconds)))
    values: dict[str, Any] = {"job": job, "speed": by_micro, "noise": QUIET, "startup_s": 15.0}
    return SimulatedCluster(**{**values, **fields})


def answer(sim: SimulatedCluster) -> Advice:
    advice = sim.run()
    assert isinstance(advice, Advice)
    return advice


def searched(sim: SimulatedCluster) -> list[Changes]:
    return [trial.changes for trial in sim.trials if trial.purpose is Purpose.SEARCH]


def only_own(sim: SimulatedCluster, changes: Changes) -> bool:
    return all(sim.job.spec.catalogue[name].place is Place.OWN for name in changes)


def die_at(micro: int, outcome: Outcome) -> Callable[[int, Changes], Outcome | None]:
    return lambda _, cold: outcome if cold.get("micro") == micro else None


def test_all_sound_combinations_are_measured_before_any_idea_of_our_own_and_the_best_one_is_named() -> None:
    sim = named_job()
    advice = answer(sim)
    first = searched(sim)[:3]
    assert {c["micro"] for c in first} == {2, 4, 8}
    assert all(only_own(sim, c) for c in first), "nothing of ours rides along"
    assert advice.verdict is Verdict.CHANGE
    assert advice.changes == {"micro": 4, "acc": 2}, "and nothing that was not shown to help"


def test_what_there_is_to_measure_is_told_with_the_first_race() -> None:
    sim = named_job()
    answer(sim)
    assert sim.races[0].named is not None
    assert sim.races[0].named.say() == (
        "You named 3 combinations beside today's, about 20 s each: all of them will be measured, before anything else."
    )
    assert not any(race.named for race in sim.races[1:])


def test_a_combination_that_dies_costs_its_launch_is_named_and_the_rest_goes_on() -> None:
    for outcome in (Outcome.HUNG, Outcome.CRASHED):
        sim = named_job(launch_fault=die_at(8, outcome))
        advice = answer(sim)
        assert advice.changes == {"micro": 4, "acc": 2}
        launched = [d.cold.get("micro") for d in sim.decisions if isinstance(d, Launch)]
        assert launched.count(8) == 1, "it is not launched again"
        assert any("micro 8, acc 1 was not measured" in sentence for sentence in advice.watch), advice.watch


def test_a_setting_of_ours_stays_beside_what_was_named_where_its_own_race_shows_that_it_helps() -> None:
    sim = named_job(speed=lambda c: by_micro(c) * (1.2 if c.get("sync_nccl_allreduce") else 1.0))
    advice = answer(sim)
    assert {n: v for n, v in advice.changes.items() if n in {"micro", "acc"}} == {"micro": 4, "acc": 2}
    assert advice.changes["sync_nccl_allreduce"] is True
    for race in sim.races:
        arms = [arm.changes for arm in race.arms]
        if "micro" in arms[-1] and not only_own(sim, arms[-1]) and len(sim.trials):
            assert only_own(sim, arms[0]) or race.arms[0].purpose is Purpose.CONFIRM, (
                "beside what was named alone"
            )


def test_hot_values_of_ones_own_share_a_launch() -> None:
    sim = named_job(own=("read=1,2,4,8:exact:hot",), command=("torchrun", "t.py"), require=(),
                    speed=lambda c: 1.5 if c.get("read") == 4 else 1.0)  # fmt: skip
    advice = answer(sim)
    assert [set(arm.changes) for arm in sim.races[1].arms] == [set(), {"read"}, {"read"}, {"read"}]
    assert advice.changes == {"read": 4}


def test_of_more_than_the_budget_holds_a_first_set_holds_middle_and_ends_alike() -> None:
    own, command = ("--a=1..9:exact", "--b=1..9:exact"), ("torchrun", "t.py", "--a", "1", "--b", "1")
    sim = named_job(own=own, command=command, require=(), speed=lambda c: 1.0 + 0.05 * float(c.get("a", 1)))
    answer(sim)
    told = sim.races[0].named
    assert told is not None
    assert 4 < told.first < 12
    assert "80 combinations" in told.say()
    assert "--trials 80" in told.say()
    first = searched(sim)[: told.first]
    assert all(only_own(sim, c) for c in first)
    values = [c.get("a", 1) for c in first]
    assert len(set(values)) == len(values), "no value comes twice before all were there"
    assert {9} < set(values)
    assert set(values) & {4, 5, 6}
    again = named_job(own=own, command=command, require=(), speed=lambda c: 1.0 + 0.05 * float(c.get("a", 1)))
    again.run()
    assert searched(again) == searched(sim), "the same job's seed gives the same set"


def test_the_end_that_its_owner_expects_to_be_faster_comes_first() -> None:
    sim = named_job(own=("--a=1..9:exact:less-is-faster",), command=("torchrun", "t.py", "--a", "5"), require=(),
                    speed=lambda c: 1.0)  # fmt: skip
    sim.run()
    assert searched(sim)[0] == {"a": 1}


def test_beyond_what_ran_out_of_memory_nothing_is_launched() -> None:
    sim = named_job(own=("--a=1,2,4,8,16:exact:more-is-faster",), command=("torchrun", "t.py", "--a", "1"), require=(),
                    speed=lambda c: 1.0 + 0.1 * float(c.get("a", 1)),
                    launch_fault=lambda _, c: Outcome.OUT_OF_MEMORY if float(c.get("a", 1)) > 3 else None)  # fmt: skip
    advice = answer(sim)
    assert advice.changes == {"a": 2}


def test_a_launch_is_ended_once_it_is_surely_slower_than_the_fastest_so_far() -> None:
    sim = named_job()
    answer(sim)
    alone = [
        r
        for r in sim.races
        if isinstance(r, Race) and r.arms[0].purpose is Purpose.SEARCH and len(r.arms) == 1
    ]
    least = [race.rules.least_samples_per_s or 0.0 for race in alone]
    assert least[0] < least[-1], "what came before raises what a launch has to reach"
    shared = [r for r in sim.races if r.arms[0].purpose is Purpose.SEARCH and len(r.arms) > 1]
    closer = {race.rules.target_error or 0.0 for race in shared}
    assert all((race.rules.target_error or 0.0) > max(closer, default=0.0) for race in alone), (
        "what launches differ by anyway is not measured more closely"
    )


def test_what_a_launch_was_made_for_is_raced_in_it_however_late_it_is() -> None:
    job = named_job(seconds=60).job
    late = Written(job=job).launch().race(BASE).launch({"micro": 4, "acc": 2})
    space = build_space(job, job.facts, ()) if job.facts else None
    assert space is not None
    found = find_named(late.record, space)
    assert found is not None
    assert found.next[0] == {"micro": 4, "acc": 2}


def recompute(changes: Changes) -> float:
    """Of 40 ms of a step 25 are micro-steps' own, and 40 % of the rest what is computed again."""
    micro = int(changes.get("micro", 1))
    again = 1.0 if changes.get("activation_checkpointing", True) and changes.get("ac") != "none" else 0.0
    return 39.0 / (25.0 / micro + 10.0 + 4.0 * again)


def recomputing_job(**fields: Any) -> SimulatedCluster:
    sim = named_job(speed=recompute, **fields)
    assert sim.job.facts is not None
    facts = sim.job.facts.model_copy(update={"recomputed": Recomputed(per_step=8, seconds=0.004)})
    baseline = {**sim.job.baseline, KEPT: True}
    sim.job = sim.job.model_copy(update={"facts": facts, "baseline": baseline})
    return sim


def raced_beside(sim: SimulatedCluster, alone: Changes) -> bool:
    both = Changes({**alone, KEPT: False})
    return any([alone, both] == [arm.changes for arm in race.arms] for race in sim.races)


def test_activations_are_kept_beside_what_was_named_in_the_same_launch() -> None:
    sim = recomputing_job()
    advice = answer(sim)
    for micro in (2, 4, 8):
        assert raced_beside(sim, Changes({"micro": micro, "acc": 8 // micro}))
    assert advice.changes == {"micro": 8, "acc": 1, KEPT: False}


def test_that_there_was_nothing_to_keep_with_one_value_of_ones_own_says_nothing_of_others() -> None:
    def keep(changes: Changes, _: Session, result: BlockResult) -> BlockResult:
        in_vain = KEPT in changes and changes.get("ac") == "none"
        told = (
            {"not_consumed": {KEPT: "There is nothing to keep instead."}, "consumed": {}} if in_vain else {}
        )
        return replace(result, **told)

    sim = recomputing_job(
        own=("--ac=full,none:exact", "--micro=1,8:exact"), command=("torchrun", "t.py", "--ac", "full", "--micro", "1"),
        require=(), alter=keep,
    )  # fmt: skip
    answer(sim)
    tried = searched(sim)
    in_vain = Changes({"ac": "none", "micro": 8, KEPT: False})
    assert tried.index(in_vain) < tried.index(Changes({"micro": 8, KEPT: False}))
