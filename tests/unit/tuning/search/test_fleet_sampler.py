"""Our search as a sampler of Optuna: alone on any study, and on the study of a job."""

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.changes import Changes
from advisor.search import FleetSampler
from advisor.tuning.search.asking import _make_sampler, _tell, mix_seed, suggest
from advisor.tuning.search.belief import Belief, Observation, learn
from advisor.tuning.search.named_space import name_space
from advisor.tuning.search.sampler import CHANGES, JobSearch, read_observation
from tests.unit.tuning.search_space import make_space

ROOT = Path(__file__).parents[4]
MIXED = {
    "fuse_grad_size_in_MB": optuna.distributions.FloatDistribution(0.5, 128.0, log=True),
    "num_threads": optuna.distributions.IntDistribution(1, 16, log=True),
    "offset": optuna.distributions.FloatDistribution(-1.0, 1.0),
    "mode": optuna.distributions.CategoricalDistribution(("a", None, True)),
}


def rate(params: dict[str, Any]) -> float:
    return 1000.0 * math.exp(
        -0.1 * abs(math.log2(params["fuse_grad_size_in_MB"] / 4.0))
        + 0.2 * math.log2(min(params["num_threads"], 8))
        - 0.3 * (params["offset"] - 0.25) ** 2
        + (0.2 if params["mode"] is None else 0.0)
    )


def search(trials: int, dies: bool = True, **told: Any) -> optuna.Study:
    """Ask and tell; more than 12 threads die."""
    study = optuna.create_study(direction="maximize", sampler=FleetSampler(MIXED, seed=1, **told))
    for _ in range(trials):
        trial = study.ask(MIXED)
        if dies and trial.params["num_threads"] > 12:
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, rate(trial.params))
    return study


def test_the_five_lines_of_the_documents() -> None:
    def measure(trial: optuna.Trial) -> float:
        return 100.0 + trial.suggest_int("num_threads", 1, 8) - trial.suggest_float("lr", 0.01, 1.0, log=True)

    blocks = (ROOT / "docs" / "optuna.md").read_text().split("```python\n")
    (lines,) = [block.partition("```")[0] for block in blocks if "FleetSampler(seed=1)" in block]
    assert len(lines.splitlines()) == 5
    found: dict[str, Any] = {"measure": measure}
    exec(lines, found)

    assert found["study"].best_params["num_threads"] == 8
    assert found["study"].best_params["lr"] < 0.05


def test_the_first_trial_is_the_documented_default_and_the_middle() -> None:
    first = search(1).trials[0].params

    assert first["fuse_grad_size_in_MB"] == CATALOGUE["fuse_grad_size_in_MB"].default
    assert first["num_threads"] == CATALOGUE["num_threads"].default
    assert (first["offset"], first["mode"]) == (0.0, "a")


def test_it_finds_the_best_of_knobs_it_knows_and_of_others_and_avoids_what_dies() -> None:
    study = search(24)
    best = math.exp(0.6 + 0.2) * 1000.0

    assert study.best_value > 0.95 * best
    assert study.best_params["mode"] is None
    assert sum(t.state is TrialState.FAIL for t in study.trials[12:]) <= 3


def test_a_sampler_made_anew_goes_on_as_the_first_one_would() -> None:
    study = search(10)
    goes_on = study.ask(MIXED).params
    copy = optuna.create_study(direction="maximize", sampler=FleetSampler(MIXED, seed=1))
    copy.add_trials(study.trials[:10])

    assert copy.ask(MIXED).params == goes_on


def test_a_batch_is_chosen_together_and_holds_no_strategy_twice() -> None:
    study = search(6, batch=3)
    asked = [study.ask(MIXED) for _ in range(3)]

    assert len({tuple(sorted(t.params.items(), key=str)) for t in asked}) == 3
    sampler = study.sampler
    assert isinstance(sampler, FleetSampler)
    assert all(
        sampler.suggestions[t.number].improvement is not None or sampler.suggestions[t.number].because
        for t in asked
    )


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_an_objective_below_zero_has_no_logarithm(direction: str) -> None:
    sign = 1.0 if direction == "minimize" else -1.0
    study = optuna.create_study(direction=direction, sampler=FleetSampler(seed=2))

    def measure(trial: optuna.Trial) -> float:
        x, y = trial.suggest_float("x", -4.0, 4.0), trial.suggest_int("y", -8, 8)
        return sign * ((x - 2.0) ** 2 + (y - 3) ** 2 - 5.0)

    study.optimize(measure, n_trials=30)

    assert sign * study.best_value < -3.0


def test_the_owners_settings_are_the_reference_and_broken_constraints_are_avoided() -> None:
    study = optuna.create_study(direction="maximize", sampler=FleetSampler(seed=3))
    study.enqueue_trial({"a": 2, "b": 2})

    def measure(trial: optuna.Trial) -> float:
        a, b = trial.suggest_int("a", 1, 8), trial.suggest_int("b", 1, 8)
        trial.set_constraint("fits", a * b - 16)
        return 10.0 + a * b

    study.optimize(measure, n_trials=25)

    assert study.trials[0].params == {"a": 2, "b": 2}
    assert study.best_value == 26.0


def test_what_it_cannot_serve_is_refused() -> None:
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=FleetSampler(MIXED))
    with pytest.raises(ValueError, match="one objective"):
        study.ask(MIXED)
    with pytest.raises(ValueError, match="batch is 0"):
        FleetSampler(batch=0)


def test_parallel_trials_are_told_apart() -> None:
    study = optuna.create_study(direction="maximize", sampler=FleetSampler(MIXED, seed=4))
    study.tell(study.ask(MIXED), 1.0)
    running = [study.ask(MIXED) for _ in range(4)]

    assert len({tuple(sorted(t.params.items(), key=str)) for t in running}) == 4


def test_every_knob_of_the_catalogue_has_a_rule_that_a_study_can_ask() -> None:
    for knob in CATALOGUE.values():
        values = (False, True) if knob.kind is bool else knob.choices or (knob.default,)
        if knob.kind in (int, float) and knob.low is not None and knob.high is not None:
            values = (knob.low, knob.high)
        named = name_space({knob.name: optuna.distributions.CategoricalDistribution(values)}, [])
        for dimension in named.space.dimensions:
            dimension.knob.rule(named.space.context)


def test_values_are_read_as_they_are_spelt() -> None:
    named = name_space(MIXED, [])
    for offset in (-1.0, -0.5, 0.5, 1.0):
        for mode in ("a", None, True):
            params = {**named.reference, "offset": offset, "mode": mode}
            assert named.spell(named.read(params)) == params
    assert named.read(named.reference) == Changes()


def test_a_jobs_study_holds_what_was_measured_failed_given_up_and_running() -> None:
    space = make_space(knobs=("fuse_grad_size_in_MB", "num_threads"))
    told = [
        Observation(Changes({"fuse_grad_size_in_MB": 4.0}), 0.1, 0.01),
        Observation(Changes({"num_threads": 2}), None),
        Observation(Changes({"num_threads": 4}), -0.5, 0.02, given_up=True),
        Observation(Changes({"fuse_grad_size_in_MB": 4.0, "num_threads": 4}), None, pending=True),
    ]
    study = _tell(space, told, FleetSampler(seed=1, knowing=JobSearch(space)))

    assert [t.state for t in study.trials] == [
        TrialState.COMPLETE,
        TrialState.COMPLETE,
        TrialState.PRUNED,
        TrialState.RUNNING,
    ]
    assert [max(t.constraints.values()) > 0 for t in study.trials] == [False, True, False, False]
    assert study.best_trial.user_attrs[CHANGES] == {"fuse_grad_size_in_MB": 4.0}
    assert [read_observation(t) for t in study.trials if t.state is not TrialState.RUNNING] == [
        told[0],
        Observation(told[1].changes, None),
        told[2],
    ]
    assert read_observation(study.trials[3]).pending


def test_what_the_search_believes_is_what_the_study_tells() -> None:
    space = make_space(knobs=("fuse_grad_size_in_MB", "num_threads"))
    told = [
        Observation(Changes({"fuse_grad_size_in_MB": 4.0}), 0.1, 0.01),
        Observation(Changes({"num_threads": 2}), None),
        Observation(Changes({"num_threads": 4}), -0.5, 0.02, given_up=True),
        Observation(Changes({"fuse_grad_size_in_MB": 4.0, "num_threads": 4}), None, pending=True),
    ]
    asked: list[list[Observation]] = []

    def believe(observations: Sequence[Observation]) -> Belief:
        asked.append(list(observations))
        return learn(space, observations, None)

    assert suggest(space, told, [], seed=1, number=1, count=2, belief=believe)
    assert asked == [told]


@pytest.mark.parametrize("sampler", ["NSGAIISampler", "CmaEsSampler", "QMCSampler"])
def test_a_sampler_that_goes_by_steps_goes_on_where_it_was(sampler: str) -> None:
    """Asked with half of the history it knows fewer generations: its proposals come from all that was told."""
    space = make_space()
    told: list[Observation] = []
    proposed = []
    for number in range(20):
        (found,) = suggest(space, told, [], seed=3, number=number, sampler=sampler)
        assert found.because.startswith(f"Optuna's {sampler} proposes it")
        proposed.append(found.changes)
        told.append(
            Observation(found.changes, 0.1 if float(found.changes.get("num_threads", 1)) > 2 else -0.1)
        )

    assert len(set(proposed)) == 20
    again = suggest(space, told, [], seed=3, number=20, sampler=sampler)
    if sampler == "NSGAIISampler":
        study = _tell(space, told, _make_sampler(space, sampler, 3), stepwise=True)
        generations = [
            v for t in study.trials for k, v in t.system_attrs.items() if k.endswith(":generation")
        ]
        assert set(generations) == {0, 1, 2}
    assert again == suggest(space, told, [], seed=3, number=20, sampler=sampler)
    assert mix_seed(3, 20) != mix_seed(3, 21)


def test_the_package_for_optunahub_holds_one_sampler_that_takes_a_space() -> None:
    package = ROOT / "examples" / "optunahub" / "package" / "samplers" / "fleet_advisor"
    spec = importlib.util.spec_from_file_location("fleet_advisor_on_the_hub", package / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    study = optuna.create_study(direction="maximize", sampler=module.FleetSampler(search_space=MIXED, seed=5))

    assert module.__all__ == ["FleetSampler"]
    assert set(study.ask(MIXED).params) == set(MIXED)
    assert (package / "README.md").read_text().startswith("---\nauthor: ")
