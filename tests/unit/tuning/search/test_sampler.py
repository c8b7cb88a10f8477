"""The first strategies, and the suggestions that follow them."""

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import get_args

import optuna
import pytest

from advisor.protocol.asked.jobs import OptunaSampler
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.knobs.strategy import DistributedStrategy, broken_rules
from advisor.tuning.search.asking import mix_seed, suggest
from advisor.tuning.search.belief import Observation
from advisor.tuning.search.sampler import Suggestion
from advisor.tuning.space.rules_of_thumb import first_strategies
from advisor.tuning.space.rungs import rung_strategies
from advisor.tuning.space.space import Space
from tests.unit.tuning.search_space import make_job, make_space, make_spec


def is_sound(space: Space, changes: dict[str, Value]) -> bool:
    strategy = DistributedStrategy.model_validate({**space.composer.own, **changes})
    return not broken_rules(strategy, space.composer.layout)


def ask(space: Space, told: list[Observation], seed: int, number: int) -> Suggestion:
    """The one new strategy that comes next."""
    (suggestion,) = suggest(space, told, [t.changes for t in told], seed=seed, number=number)
    return suggestion


def score_of(changes: dict[str, Value]) -> float:
    return 0.1 if float(changes.get("fuse_grad_size_in_MB", 25)) < 8 else -0.02


@pytest.mark.parametrize("allow", list(Effect))
def test_first_strategies_are_sound_distinct_and_explained(allow: Effect) -> None:
    space = make_space(allow=allow)

    priors = first_strategies(space)

    assert 6 <= len(priors) <= 12
    assert len({p.changes for p in priors}) == len(priors)
    assert all(p.because.endswith(".") and is_sound(space, dict(p.changes)) for p in priors)
    assert all(CATALOGUE.effect_of(p.changes).rank <= allow.rank for p in priors)


def test_local_sgd_never_starts_with_an_interval_of_one() -> None:
    priors = first_strategies(make_space(allow=Effect.CONVERGENCE))

    intervals = {p.changes["localsgd_k_steps"] for p in priors if p.changes.get("localsgd")}
    assert intervals
    assert 1 not in intervals


def test_frozen_companions_rule_a_strategy_out() -> None:
    space = make_space(freeze=("sync_nccl_allreduce",))
    on = make_space(
        make_job(make_spec(freeze=("sync_nccl_allreduce",)), baseline={"sync_nccl_allreduce": True})
    )

    assert space.composer.compose({"nccl_comm_num": 2}) == {"nccl_comm_num": 2}
    assert on.composer.compose({"nccl_comm_num": 2}) is None


def test_a_smaller_bucket_shrinks_the_first_one_too() -> None:
    space = make_space(make_job(baseline={"last_comm_group_size_MB": 25.0, "fuse_grad_size_in_MB": 25.0}))

    assert space.composer.compose({"fuse_grad_size_in_MB": 4.0}) == {
        "fuse_grad_size_in_MB": 4.0,
        "last_comm_group_size_MB": 4.0,
    }


def test_suggestions_are_reproducible_new_and_sound() -> None:
    space = make_space(allow=Effect.CONVERGENCE)
    told = [Observation(p.changes, score_of(dict(p.changes))) for p in first_strategies(space)]
    for number in range(10):
        tried = [t.changes for t in told]
        first = suggest(space, told, tried, seed=5, number=number, count=2)
        again = suggest(space, told, tried, seed=5, number=number, count=2)
        assert first == again
        keys = {s.changes for s in first}
        assert len(keys) == 2
        assert not keys & {Changes(c) for c in tried}
        assert all(is_sound(space, s.changes) and not s.repeat for s in first)
        told += [Observation(s.changes, score_of(s.changes)) for s in first]


def test_the_sampler_learns_where_it_is_fast() -> None:
    space = make_space()
    told = [Observation(p.changes, score_of(dict(p.changes))) for p in first_strategies(space)]
    found = []
    for number in range(12):
        suggestion = ask(space, told, seed=1, number=number)
        found.append(suggestion.changes)
        told.append(Observation(suggestion.changes, score_of(suggestion.changes)))

    assert sum(score_of(changes) > 0 for changes in found) >= 8


def test_what_makes_strategies_fail_is_learnt_and_avoided() -> None:
    space = make_space(knobs=("fuse_grad_size_in_MB", "num_threads", "nccl_comm_num"))
    dice = random.Random(0)
    told: list[Observation] = []
    failed: list[int] = []
    for number in range(30):
        (suggestion,) = suggest(space, told, [], seed=2, number=number)
        fails = suggestion.changes.get("nccl_comm_num", 1) != 1
        failed += [number] if fails else []
        told.append(Observation(suggestion.changes, None if fails else dice.gauss(0, 0.01), 0.01))

    assert len(failed) <= 5
    assert all(number < 10 for number in failed)


def test_a_small_space_is_exhausted() -> None:
    space = make_space(knobs=("num_threads",))
    told: list[Observation] = []
    while found := suggest(space, told, [t.changes for t in told], seed=0, number=len(told)):
        told.append(Observation(found[0].changes, 0.0))

    assert {t.changes["num_threads"] for t in told} == {2, 4}


def test_nothing_stands_behind_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no surrogate today")

    monkeypatch.setattr("advisor.tuning.search.sampler.learn", refuse)
    space = make_space()
    told = [Observation(p.changes, score_of(dict(p.changes))) for p in first_strategies(space)]

    with pytest.raises(RuntimeError, match="no surrogate today"):
        suggest(space, told, [], seed=3, number=7)


def test_a_random_draw_replaces_optuna_when_it_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no study today")

    monkeypatch.setattr(optuna, "create_study", refuse)
    space = make_space()

    (first,) = suggest(space, [], [], seed=3, number=7, sampler="TPESampler")

    assert "no study today" in first.because
    assert "Drawn at random" in first.because
    assert [first] == suggest(space, [], [], seed=3, number=7, sampler="TPESampler")


def test_a_quick_suggestion_computes_no_surrogate(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("it was to be quick")

    monkeypatch.setattr("advisor.tuning.search.sampler.learn", refuse)

    (quick,) = suggest(make_space(), [], [], seed=3, number=7, quick=True)

    assert quick.improvement is None
    assert quick.because.startswith("Drawn at random: ")


@pytest.mark.parametrize("sampler", get_args(OptunaSampler))
def test_any_sampler_of_optuna_is_asked_by_its_name(sampler: str) -> None:
    space = make_space(knobs=("fuse_grad_size_in_MB", "num_threads", "nccl_comm_num"))
    told = [Observation(p.changes, score_of(dict(p.changes))) for p in first_strategies(space)]
    told.append(Observation(Changes({"num_threads": 2, "nccl_comm_num": 2}), None))

    found = suggest(space, told, [], seed=3, number=7, count=2, sampler=sampler)

    assert found
    assert all(one.because.startswith(f"Optuna's {sampler} proposes it") for one in found)
    assert not {one.changes for one in found} & {one.changes for one in told}
    assert all(is_sound(space, dict(one.changes)) for one in found)
    assert found == suggest(space, told, [], seed=3, number=7, count=2, sampler=sampler)


HUB_SAMPLER = """
from optuna.samplers import RandomSampler
class FewestSampler(RandomSampler):
    pass
__all__ = ["FewestSampler"]
"""


class FakeHub:
    """OptunaHub's door for a directory: it imports the package's folder."""

    @staticmethod
    def load_local_module(package: str, *, registry_root: str) -> ModuleType:
        path = Path(registry_root, package, "__init__.py")
        spec = importlib.util.spec_from_file_location("optunahub_registry.package.fewest", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def test_a_sampler_of_the_hub_is_run_where_the_owner_allows_its_registry(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "package" / "samplers" / "fewest"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(HUB_SAMPLER)
    monkeypatch.setitem(sys.modules, "optunahub", FakeHub)  # type: ignore[arg-type]
    monkeypatch.delenv("ADVISOR_HUB_SAMPLERS", raising=False)
    refused = suggest(make_space(), [], [], seed=3, number=7, sampler="hub:fewest")
    assert "ADVISOR_HUB_SAMPLERS is empty" in refused[0].because
    assert "Drawn at random" in refused[0].because

    monkeypatch.setenv("ADVISOR_HUB_SAMPLERS", str(tmp_path))
    found = suggest(make_space(), [], [], seed=3, number=7, sampler="hub:fewest")

    assert found[0].because.startswith("OptunaHub's fewest proposes it")
    assert found == suggest(make_space(), [], [], seed=3, number=7, sampler="hub:fewest")


def test_a_suggestion_says_with_figures_what_is_expected() -> None:
    space = make_space()
    told = [Observation(p.changes, score_of(dict(p.changes))) for p in first_strategies(space)]

    suggestion = ask(space, told, seed=3, number=7)

    assert suggestion.improvement is not None
    assert f"after {len(told)} measured strategies; best so far +" in suggestion.because


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
