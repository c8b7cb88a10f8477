"""A job's search as a study of Optuna: what was measured is told to it, and the next race's strategies are asked of it.

The study is rebuilt from the job's history for every race, so that a server that starts anew goes on as the one before
would have: the same history, seed and sampler give the same strategies. The sampler is ours (`sampler`), or the one
that the job names, of Optuna's or of OptunaHub's.
"""

import hashlib
import importlib
import inspect
import os
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from advisor.protocol.asked.jobs import HUB
from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.tuning.search.acquisition import Price
from advisor.tuning.search.belief import Belief, Observation, Predictor
from advisor.tuning.search.candidate_pool import list_candidates, list_dimensions
from advisor.tuning.search.places import list_distributions, locate, read_places
from advisor.tuning.search.sampler import CHANGES, ERROR, RUNS, FleetSampler, JobSearch, Suggestion
from advisor.tuning.space.space import Space

MOST_ARMS = 4
"""Strategies of one race at most, beside the baseline: more of them wait for each other."""
_PENALTY = 0.2
"""How far below the worst score a failed strategy's value is, in ln(throughput): not all samplers know constraints."""
_ASKS = 24
"""How often a named sampler is asked for a strategy that may be chosen, before one is drawn in its place."""
_SLOW_ASKS = 4
"""The same for Optuna's GP, which takes a tenth of a second for each."""
_MOST_TOLD = 60
"""Strategies that named samplers are told at most, the latest ones: their time grows with the number."""
_LEARNS_AFTER = 4
"""Told strategies below which those samplers draw at random that can be told so."""
_POPULATION = 8
"""Strategies of a generation, where a sampler goes by generations: its own fifty are more than a job measures."""
_STEPWISE = ("CmaEsSampler", "NSGAIISampler", "NSGAIIISampler", "QMCSampler", "RandomSampler")
"""Samplers that go on from what they noted when they were asked before: the study is asked for every told strategy."""


def suggest(space: Space, observations: Sequence[Observation], barred: Sequence[Mapping[str, Value]], seed: int,
            number: int, count: int = 1, model: Predictor | None = None, price_s: Price = lambda _: 1.0,
            quick: bool = False, belief: Callable[[Sequence[Observation]], Belief] | None = None,
            sampler: str = "") -> list[Suggestion]:  # fmt: skip
    """Return the strategies of the next race, at most `count` (1 … 4), most worth first; empty when none is left.

    Measured strategies may come again by our own sampler; those that failed or are under way never do, nor do `barred`
    ones (known to be idle, lost, measured where no repeat is wanted). `number` is the coming race's number, `model` a
    cost model, `price_s` what measuring a strategy costs in seconds; `belief` is for callers who may have what
    `learn` returns for observations already. `sampler` names one of Optuna's by its class, or one of OptunaHub's by
    hub:NAME. `quick` computes nothing: strategies are drawn, as where a named sampler fails or finds nothing new.
    """
    if not list_dimensions(space):
        return []
    count = max(1, min(MOST_ARMS, count))
    failed = {o.changes for o in observations if o.score is None}
    never = frozenset(failed | {Changes(changes) for changes in barred})
    known = {*never, *(o.changes for o in observations)}
    race_seed, why = mix_seed(seed, number), ""
    if not sampler and not quick:
        job = JobSearch(space, never, model, price_s, belief)
        own = FleetSampler(seed=race_seed, batch=count, knowing=job)
        return _ask_own(_tell(space, observations, own), own, space, count)
    if not quick:
        try:
            found = _ask_named(space, observations, sampler, (seed, race_seed), known, count)
        except Exception as error:  # whatever a library raises, the search goes on without it
            why = f"{_title(sampler)} failed ({type(error).__name__}: {error}). "
        else:
            if found:
                return found
            why = f"{_title(sampler)} found only strategies that were measured already. "
    pool = list_candidates(space, known, [], race_seed)
    drawn = random.Random(race_seed).sample(pool, min(count, len(pool)))  # noqa: S311 - reproducible
    return [Suggestion(c, f"{why}Drawn at random: {c.describe()}.") for c in drawn]


def mix_seed(seed: int, number: int) -> int:
    """Return a 32-bit seed from the job's seed and a race's number, the same on every machine."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:4], "big")


def _tell(
    space: Space, observations: Sequence[Observation], sampler: BaseSampler, stepwise: bool = False
) -> optuna.Study:
    """Return a study that was told the observations, one trial each.

    A score, ln(throughput / the script's own), is the trial's value; a strategy that failed by its own fault breaks
    the constraint `runs`; one that was given up is pruned; one that is being measured runs.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    distributions = list_distributions(space)
    worst = min([0.0, *(o.score for o in observations if o.score is not None)])
    for told in observations:
        trial = create_trial(
            state=TrialState.RUNNING
            if told.pending
            else TrialState.PRUNED
            if told.given_up
            else TrialState.COMPLETE,
            value=None if told.pending else worst - _PENALTY if told.score is None else told.score,
            params=locate(space, told.changes),
            distributions=distributions,
            user_attrs={CHANGES: dict(told.changes), ERROR: told.error},
            intermediate_values={0: told.score} if told.given_up and told.score is not None else None,
            constraints={RUNS: 1.0 if told.score is None and not told.pending else -1.0},
        )
        if stepwise:
            _replay(study, trial)
        else:
            study.add_trial(trial)
    return study


def _replay(study: optuna.Study, told: FrozenTrial) -> None:
    """Ask for a told trial and tell its value, so that the sampler notes what it goes on from."""
    study.enqueue_trial(told.params, user_attrs=told.user_attrs)
    trial = study.ask(told.distributions)
    # Of a trial whose parameters are all given Optuna asks its sampler nothing, unless somebody reads the answer.
    _ = trial.relative_params
    for constraint, value in told.constraints.items():
        trial.set_constraint(constraint, value)
    if told.state.is_finished():
        for step, value in told.intermediate_values.items():
            trial.report(value, step)
        pruned = told.state is TrialState.PRUNED
        study.tell(trial, None if pruned else told.value, state=told.state)


def _ask_own(study: optuna.Study, sampler: FleetSampler, space: Space, count: int) -> list[Suggestion]:
    found: list[Suggestion] = []
    for _ in range(count):
        trial = study.ask(list_distributions(space))
        if trial.number not in sampler.suggestions:
            break
        found.append(sampler.suggestions[trial.number])
    return found


def _ask_named(
    space: Space,
    observations: Sequence[Observation],
    name: str,
    seeds: tuple[int, int],
    known: set[Changes],
    count: int,
) -> list[Suggestion]:
    """Ask a sampler that knows no repeats: each strategy once."""
    stepwise = name in _STEPWISE
    sampler = _make_sampler(space, name, seeds[0] % 2**32 if stepwise else seeds[1])
    study = _tell(space, observations[-_MOST_TOLD:], sampler, stepwise)
    measured = sum(o.score is not None for o in observations)
    found: list[Suggestion] = []
    for _ in range(_SLOW_ASKS if name == "GPSampler" else _ASKS):
        changes = read_places(space, study.ask(list_distributions(space)).params)
        if changes is not None and changes not in known:
            known = {*known, changes}
            because = (
                f"{_title(name)} proposes it after {measured} measured strategies: {changes.describe()}."
            )
            found.append(Suggestion(changes, because))
            if len(found) == count:
                break
    return found


def _make_sampler(space: Space, name: str, seed: int) -> BaseSampler:
    """Make one of Optuna's own samplers, by the name of its class, or one of OptunaHub, by the name of its package."""
    if name.startswith(HUB):
        return _make_hub_sampler(space, name.removeprefix(HUB), seed)
    kind = getattr(optuna.samplers, name)
    taken = inspect.signature(kind).parameters
    given = {"n_startup_trials": _LEARNS_AFTER, "population_size": _POPULATION}
    return kind(seed=seed, **{word: value for word, value in given.items() if word in taken})


def _make_hub_sampler(space: Space, name: str, seed: int) -> BaseSampler:
    """Load the package where the server's owner lets it come from, and make the one sampler that it exports.

    Raises PermissionError where nothing is allowed, and ValueError where it is not clear which sampler is meant.
    """
    # The process that thinks may be another one than the server: it inherits the setting, and no caller can widen it.
    registry = os.environ.get("ADVISOR_HUB_SAMPLERS", "")
    if not registry:
        raise PermissionError("the server's owner allows none: ADVISOR_HUB_SAMPLERS is empty")
    hub = importlib.import_module("optunahub")
    package = f"samplers/{name}"
    if registry == "github":
        module = hub.load_module(package)
    else:
        module = hub.load_local_module(package, registry_root=str(Path(registry, "package")))
    kinds = {
        kind for kind in (getattr(module, exported) for exported in getattr(module, "__all__", vars(module)))
        if isinstance(kind, type) and issubclass(kind, BaseSampler) and not inspect.isabstract(kind)
    }  # fmt: skip
    named = {kind for kind in kinds if kind.__name__.lower() == name.replace("_", "")} or kinds
    if len(named) != 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds)) or "none"
        raise ValueError(f"one sampler was expected in {package}, and it exports {names}")
    (kind,) = named
    taken = inspect.signature(kind).parameters
    given = {"seed": seed, "search_space": list_distributions(space)}
    return kind(**{word: value for word, value in given.items() if word in taken})


def _title(name: str) -> str:
    """Return the sampler's name in a sentence."""
    return f"OptunaHub's {name.removeprefix(HUB)}" if name.startswith(HUB) else f"Optuna's {name}"
