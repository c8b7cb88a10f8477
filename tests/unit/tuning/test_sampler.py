"""The first strategies, and the suggestions that follow them."""

import random

import optuna
import pytest

from advisor.protocol.base import Value
from advisor.protocol.knobs import Effect
from advisor.protocol.strategy import DistributedStrategy, broken_rules, effect_of
from advisor.tuning.composition import key_of
from advisor.tuning.ladder import rung_strategies
from advisor.tuning.priors import first_strategies
from advisor.tuning.sampler import AdvisorSampler, Told, mix_seed, suggest
from advisor.tuning.space import Space, build_space

from .simulated_cluster import make_facts, make_job, make_spec


def make_space(**fields: object) -> Space:
    return build_space(make_job(make_spec(**fields)), make_facts(), [])


def is_sound(space: Space, changes: dict[str, Value]) -> bool:
    strategy = DistributedStrategy.from_changes(changes, base=space.composer.baseline)
    return not broken_rules(strategy, space.composer.layout)


def score_of(changes: dict[str, Value]) -> float:
    return 0.1 if float(changes.get("fuse_grad_size_in_MB", 25)) < 8 else -0.02


@pytest.mark.parametrize("allow", list(Effect))
def test_first_strategies_are_sound_distinct_and_explained(allow: Effect) -> None:
    space = make_space(allow=allow)

    priors = first_strategies(space)

    assert 6 <= len(priors) <= 12
    assert len({key_of(p.changes) for p in priors}) == len(priors)
    assert all(p.because.endswith(".") and is_sound(space, dict(p.changes)) for p in priors)
    assert all(effect_of(p.changes).rank <= allow.rank for p in priors)


def test_local_sgd_never_starts_with_an_interval_of_one() -> None:
    priors = first_strategies(make_space(allow=Effect.CONVERGENCE))

    intervals = {p.changes["localsgd_k_steps"] for p in priors if p.changes.get("localsgd")}
    assert intervals
    assert 1 not in intervals


def test_frozen_companions_rule_a_strategy_out() -> None:
    space = make_space(freeze=("sync_nccl_allreduce",))
    on = build_space(
        make_job(make_spec(freeze=("sync_nccl_allreduce",)), baseline={"sync_nccl_allreduce": True}),
        make_facts(),
        [],
    )

    assert space.composer.compose({"nccl_comm_num": 2}) == {"nccl_comm_num": 2}
    assert on.composer.compose({"nccl_comm_num": 2}) is None


def test_a_smaller_bucket_shrinks_the_first_one_too() -> None:
    space = build_space(make_job(baseline={"last_comm_group_size_MB": 25.0, "fuse_grad_size_in_MB": 25.0}),
                        make_facts(), [])  # fmt: skip

    assert space.composer.compose({"fuse_grad_size_in_MB": 4.0}) == {
        "fuse_grad_size_in_MB": 4.0,
        "last_comm_group_size_MB": 4.0,
    }


def test_suggestions_are_reproducible_new_and_sound() -> None:
    space = make_space(allow=Effect.CONVERGENCE)
    told = [Told(p.changes, score_of(dict(p.changes))) for p in first_strategies(space)]
    for number in range(10):
        tried = [t.changes for t in told]
        first = suggest(space, told, tried, startup=8, seed=5, number=number)
        again = suggest(space, told, tried, startup=8, seed=5, number=number)
        assert first is not None
        assert first == again
        assert is_sound(space, first.changes)
        assert key_of(first.changes) not in {key_of(c) for c in tried}
        told.append(Told(first.changes, score_of(first.changes)))


def test_the_sampler_learns_where_it_is_fast() -> None:
    space = make_space()
    told = [Told(p.changes, score_of(dict(p.changes))) for p in first_strategies(space)]
    found = []
    for number in range(12):
        suggestion = suggest(space, told, [t.changes for t in told], startup=len(told), seed=1, number=number)
        assert suggestion is not None
        found.append(suggestion.changes)
        told.append(Told(suggestion.changes, score_of(suggestion.changes)))

    assert sum(score_of(changes) > 0 for changes in found) >= 8


def test_failed_strategies_are_told_as_infeasible_and_avoided() -> None:
    space = make_space(knobs=("fuse_grad_size_in_MB", "num_threads", "nccl_comm_num"))
    dice = random.Random(0)
    told: list[Told] = []
    bad = 0
    for number in range(40):
        suggestion = suggest(space, told, [t.changes for t in told], startup=6, seed=2, number=number)
        if suggestion is None:
            break
        fails = suggestion.changes.get("nccl_comm_num", 1) != 1
        bad += fails and number >= 20
        told.append(Told(suggestion.changes, None if fails else dice.gauss(0, 0.01)))

    assert bad <= 10


def test_a_small_space_is_exhausted() -> None:
    space = make_space(knobs=("num_threads",))
    told: list[Told] = []
    while (
        suggestion := suggest(space, told, [t.changes for t in told], 1, seed=0, number=len(told))
    ) is not None:
        told.append(Told(suggestion.changes, 0.0))

    assert {t.changes["num_threads"] for t in told} == {2, 4}


def test_the_ladder_of_samplers_is_climbed_down_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no surrogate today")

    monkeypatch.setattr("advisor.tuning.sampler.learn", refuse)
    monkeypatch.setattr(optuna.samplers, "GPSampler", refuse)
    space = make_space()
    told = [Told(p.changes, score_of(dict(p.changes))) for p in first_strategies(space)]

    first = suggest(space, told, [t.changes for t in told], startup=5, seed=3, number=7)

    assert first is not None
    assert "The surrogate failed (RuntimeError: no surrogate today)." in first.because
    assert "Optuna's TPE expects" in first.because
    assert first == suggest(space, told, [t.changes for t in told], startup=5, seed=3, number=7)


def test_a_random_draw_replaces_optuna_when_it_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise RuntimeError("no study today")

    monkeypatch.setattr(optuna, "create_study", refuse)
    space = make_space()

    first = suggest(space, [], [], startup=5, seed=3, number=7)

    assert first is not None
    assert "no study today" in first.because
    assert "Drawn at random" in first.because
    assert first == suggest(space, [], [], startup=5, seed=3, number=7)


def test_a_quick_suggestion_computes_no_surrogate(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("it was to be quick")

    monkeypatch.setattr("advisor.tuning.sampler.learn", refuse)

    quick = suggest(make_space(), [], [], startup=5, seed=3, number=7, quick=True)

    assert quick is not None
    assert quick.improvement is None
    assert quick.because.startswith("Optuna's TPE")


def test_the_sampler_serves_optunas_own_study() -> None:
    space = make_space()
    sampler = AdvisorSampler(space, set(), None, lambda _: 1.0, seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)

    trial = study.ask(sampler.infer_relative_search_space(study, None))  # type: ignore[arg-type]

    assert sampler.choice is not None
    assert trial.params.keys() == {d.knob.name for d in space.dimensions}


def test_a_suggestion_says_with_figures_what_is_expected() -> None:
    space = make_space()
    told = [Told(p.changes, score_of(dict(p.changes))) for p in first_strategies(space)]

    suggestion = suggest(space, told, [t.changes for t in told], startup=5, seed=3, number=7)

    assert suggestion is not None
    assert suggestion.improvement is not None
    assert f"after {len(told)} measured strategies; the best so far is put at +" in suggestion.because


def test_seeds_differ_by_job_and_trial() -> None:
    assert len({mix_seed(job, trial) for job in range(5) for trial in range(5)}) == 25


def test_the_ladder_stands_on_the_best_strategy() -> None:
    space = make_space()

    numeric = rung_strategies(space, Effect.NUMERIC, {"fuse_grad_size_in_MB": 4.0})
    convergence = rung_strategies(space, Effect.CONVERGENCE, {"fuse_grad_size_in_MB": 4.0, "num_threads": 2})
    local = [p for p in convergence if "localsgd" in p.changes]

    assert numeric[0].changes == {"fuse_grad_size_in_MB": 4.0, "fp16_allreduce": True}
    assert [p.changes["localsgd_k_steps"] for p in local if "localsgd_begin_step" not in p.changes] == [
        4,
        2,
        8,
    ]
    assert {"adaptive_localsgd", "gradient_merge", "dgc"} <= {name for p in convergence for name in p.changes}
    assert all(p.changes["num_threads"] == 2 and "fuse_grad_size_in_MB" not in p.changes for p in local)
