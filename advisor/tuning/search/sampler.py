"""Our search as a sampler of Optuna: rules of thumb, then a Gaussian process over strategies with a cost model's mean.

The sampler reads what was measured from the study that asks it, and from nowhere else: the same study and seed give
the same proposal. The advisor's server makes such a study of every job (`asking`); alone it serves any study.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from advisor.protocol.knobs.changes import Changes
from advisor.protocol.nodes.cluster import Cluster
from advisor.protocol.training.workload import WorkloadFacts
from advisor.tuning.search.acquisition import Choice, Price, choose
from advisor.tuning.search.belief import Belief, Observation, Predictor, learn
from advisor.tuning.search.candidate_pool import list_candidates
from advisor.tuning.search.named_space import NamedSpace, name_space
from advisor.tuning.search.places import list_distributions, locate
from advisor.tuning.space.rules_of_thumb import first_strategies
from advisor.tuning.space.space import Space

CHANGES, ERROR, GAVE_UP = "changes", "standard error", "given up"
"""What a trial of a job's study carries beside its places and its value, as user attributes."""
RUNS = "runs"
"""The constraint that a strategy breaks which failed by its own fault."""
_FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
_LINEAR = 0.1
"""Deviation, in ln(throughput), that the scores of an objective without a logarithm are brought to."""


@dataclass(frozen=True)
class Suggestion:
    """A strategy for the next race, and why."""

    changes: Changes
    because: str
    improvement: float | None = None
    """How much the best posterior mean is expected to rise by it, in ln(throughput); None where nothing was modelled.

    The first suggestion's is the most that another race can bring for its price."""
    repeat: bool = False
    """It was measured before: this makes surer what it brings."""
    gain: float | None = None
    """What is predicted of it, in ln(throughput); None where nothing was modelled."""


@dataclass(frozen=True)
class JobSearch:
    """What a job knows beside its study."""

    space: Space
    never: frozenset[Changes] = frozenset()
    """Strategies that must not be chosen."""
    model: Predictor | None = None
    """Predicts step times."""
    price_s: Price = lambda _: 1.0
    """What measuring a strategy costs, in seconds."""
    belief: Callable[[Sequence[Observation]], Belief] | None = field(default=None, compare=False)
    """What `learn` returns for what the study tells, where the caller may have it already."""
    spell: Callable[[Changes], str] = Changes.describe
    """How a strategy is written in the reasons."""


class FleetSampler(optuna.samplers.BaseSampler):  # type: ignore[misc,unused-ignore]
    """The advisor's search, for any study of one objective.

        study = optuna.create_study(direction="maximize", sampler=FleetSampler(seed=1))
        study.optimize(measure, n_trials=20)

    The first trial is the reference: of knobs of Fleet's names their documented defaults, of others the middle of
    their range; `study.enqueue_trial` names other settings. Then come the rules of thumb of those knobs, one after
    another, and what the Gaussian process finds most worth measuring per trial. Values that are all positive count by
    their logarithms, as throughputs and times do. A trial's user attribute `standard error`, in the value's own
    unit, says how sure its value is (2 % of it where that is missing); trials that fail, and those that break a
    constraint, teach which settings do not run. After all is measured, the best are measured again.

    `search_space` are the distributions, as OptunaHub's samplers take them; without it they are those that all finished
    trials share, so that the second trial is the first one that is chosen. `batch` trials are chosen together, as those
    of a race are. `facts` and `cluster` are what the rules of thumb ask about the training; without them one node of
    eight ranks is assumed. `knowing` is for the advisor's own server.
    """

    def __init__(
        self,
        search_space: Mapping[str, BaseDistribution] | None = None,
        *,
        seed: int | None = None,
        batch: int = 1,
        facts: WorkloadFacts | None = None,
        cluster: Cluster | None = None,
        knowing: JobSearch | None = None,
    ) -> None:
        """Raises ValueError where `batch` is less than 1."""
        if batch < 1:
            raise ValueError(f"batch is {batch}, but at least one trial is chosen at a time")
        self._search_space = dict(search_space) if search_space else None
        self._drawing = optuna.samplers.RandomSampler(seed=seed)
        self._seed = _draw_seed() if seed is None else seed
        self._batch, self._facts, self._cluster, self._knowing = batch, facts, cluster, knowing
        self._shared = optuna.search_space.IntersectionSearchSpace()
        self._told = -1
        """Finished trials when the waiting suggestions were found."""
        self._waiting: list[Suggestion] = []
        self._is_short = False
        """Whether fewer were found than a batch holds: nothing else is worth measuring until more is told."""
        self.suggestions: dict[int, Suggestion] = {}
        """What was chosen for each trial, by its number; trials that were drawn are not among them."""

    def reseed_rng(self) -> None:
        """Draw differently in another process."""
        self._drawing.reseed_rng()
        self._seed = _draw_seed()

    def infer_relative_search_space(
        self,
        study: optuna.Study,
        trial: FrozenTrial,  # noqa: ARG002 - as Optuna declares it
    ) -> dict[str, BaseDistribution]:
        """Return the distributions of what is chosen together."""
        if self._knowing is not None:
            return list_distributions(self._knowing.space)
        found = self._search_space or self._shared.calculate(study)
        return {name: found[name] for name in found if not found[name].single()}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the next strategy's parameters; none where nothing is left to choose. Raises ValueError."""
        if not search_space:
            return {}
        if len(study.directions) > 1:
            raise ValueError(
                "FleetSampler serves one objective, and this study has several: make the others constraints."
            )
        if (job := self._knowing) is not None:
            suggestion = self._next(study, lambda: self._choose_for_job(study, job))
            return (
                {}
                if suggestion is None
                else self._note(trial, suggestion, locate(job.space, suggestion.changes))
            )
        trials = study.get_trials(deepcopy=False)
        named = name_space(search_space, trials, self._facts, self._cluster)
        if not any(t.state is TrialState.COMPLETE for t in trials):
            return named.reference if len(trials) <= 1 else {}
        suggestion = self._next(study, lambda: self._choose_alone(study, named, trials))
        return {} if suggestion is None else self._note(trial, suggestion, named.spell(suggestion.changes))

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a value of one parameter: the reference's for the first trial, else one that is drawn."""
        if self._knowing is None and trial.number == 0:
            return name_space({param_name: param_distribution}, [], self._facts, self._cluster).reference[
                param_name
            ]
        return self._drawing.sample_independent(study, trial, param_name, param_distribution)

    def _note(self, trial: FrozenTrial, suggestion: Suggestion, params: dict[str, Any]) -> dict[str, Any]:
        self.suggestions[trial.number] = suggestion
        return params

    def _next(self, study: optuna.Study, think: Callable[[], list[Suggestion]]) -> Suggestion | None:
        """Return the next of those that were chosen together; they are chosen anew whenever more was told."""
        told = len(study.get_trials(deepcopy=False, states=_FINISHED))
        if told != self._told or not (self._waiting or self._is_short):
            self._told, self._waiting = told, think()
            self._is_short = len(self._waiting) < self._batch
        return self._waiting.pop(0) if self._waiting else None

    def _choose_for_job(self, study: optuna.Study, job: JobSearch) -> list[Suggestion]:
        observations = [
            read_observation(trial)
            for trial in study.get_trials(deepcopy=False)
            if CHANGES in trial.user_attrs
        ]
        return choose_suggestions(job, observations, self._seed, self._batch)

    def _choose_alone(
        self, study: optuna.Study, named: NamedSpace, trials: Sequence[FrozenTrial]
    ) -> list[Suggestion]:
        score = _make_score(study, trials)
        observations = []
        for trial in trials:
            asked = self.suggestions.get(trial.number)
            changes = (
                named.read(trial.params)
                if set(named.distributions) <= trial.params.keys()
                else asked and asked.changes
            )
            if changes:
                observations.append(_observe(trial, changes, score))
        known = {observation.changes for observation in observations}
        rules = [prior for prior in first_strategies(named.space) if prior.changes not in known]
        if rules:
            return [Suggestion(prior.changes, prior.because) for prior in rules[: self._batch]]
        # Numbered by what was told: a sampler that is made anew goes on as this one would.
        seed = (self._seed + 7919 * len(trials)) % 2**32
        job = JobSearch(named.space, spell=named.describe)
        found = choose_suggestions(job, observations, seed, self._batch)
        return found or [
            Suggestion(c, "Drawn.") for c in list_candidates(named.space, known, [], seed)[: self._batch]
        ]


def _draw_seed() -> int:
    return random.SystemRandom().randrange(2**32)


def choose_suggestions(
    job: JobSearch, observations: Sequence[Observation], seed: int, count: int
) -> list[Suggestion]:
    """Return the strategies whose measurement is worth most per second, best first."""
    belief = job.belief(observations) if job.belief else learn(job.space, observations, job.model)
    return [
        Suggestion(
            choice.changes,
            _explain(choice, belief, job.spell),
            choice.improvement,
            choice.repeat,
            choice.mean,
        )
        for choice in choose(belief, job.never, job.price_s, seed, count)
    ]


def read_observation(trial: FrozenTrial) -> Observation:
    """Return what a trial of a job's study teaches; its value is a score, in ln(throughput / the script's own)."""
    changes = Changes(trial.user_attrs[CHANGES])
    if trial.state is TrialState.RUNNING:
        return Observation(changes, None, pending=True)
    if any(broken > 0.0 for broken in trial.constraints.values()) or trial.value is None:
        return Observation(changes, None)
    return Observation(
        changes, trial.value, trial.user_attrs[ERROR], given_up=trial.state is TrialState.PRUNED
    )


def _observe(trial: FrozenTrial, changes: Changes, score: Callable[[float], float]) -> Observation:
    if trial.state in (TrialState.RUNNING, TrialState.WAITING):
        return Observation(changes, None, pending=True)
    value = trial.value if trial.state is not TrialState.FAIL else None
    if value is None or not math.isfinite(value) or any(c > 0.0 for c in trial.constraints.values()):
        return Observation(changes, None)
    error = trial.user_attrs.get(ERROR)
    if not isinstance(error, int | float) or not error > 0.0:
        return Observation(changes, score(value))
    return Observation(changes, score(value), abs(score(value + error) - score(value)))


def _make_score(study: optuna.Study, trials: Sequence[FrozenTrial]) -> Callable[[float], float]:
    """Return value -> score above the reference's, the first complete trial's; more is better."""
    values = [t.value for t in trials if t.state is TrialState.COMPLETE and t.value is not None]
    sign = 1.0 if study.direction is StudyDirection.MAXIMIZE else -1.0
    own = values[0]
    if min(values) > 0.0:
        return lambda value: sign * math.log(max(value, 1e-12) / own)
    widest = max(abs(value - own) for value in values) or 1.0
    return lambda value: sign * _LINEAR * 2.0 * (value - own) / widest


def _explain(choice: Choice, belief: Belief, spell: Callable[[Changes], str]) -> str:
    gain, spread = math.expm1(choice.mean), math.exp(choice.mean) * choice.sd
    what = f"predicted {gain:+.1%} ± {spread * 100:.1f} after {belief.count} measured strategies"
    if choice.prior is not None:
        what += f", {math.expm1(choice.prior):+.1%} by the cost model alone"
    best = f"best so far {math.expm1(choice.incumbent):+.1%}" if choice.incumbent > 0 else (
        "none so far is predicted to beat the baseline"
    )  # fmt: skip
    again = "Measured again, because it may be the best: " if choice.repeat else ""
    return f"{again}{spell(choice.changes)}: {what}; {best}."
