"""History -> next strategy. The only file of the search that imports optuna.

Optuna is the engine: the search's own sampler is one of its samplers, with its others as a ladder to fall back on. It
never stores anything for us: a study is rebuilt in memory from our own rows for every suggestion, seeded by the job's
seed and the trial's number, so the same history always gives the same suggestion.
"""

import hashlib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna

from advisor.protocol.base import Value
from advisor.tuning.acquisition import Choice, Predictor, Told, choose, learn
from advisor.tuning.candidates import Key, list_candidates, list_dimensions
from advisor.tuning.composition import describe_changes, key_of
from advisor.tuning.space import Dimension, Space

__all__ = ["AdvisorSampler", "Suggestion", "Told", "mix_seed", "suggest"]

_PENALTY = 0.2
"""How far below the worst measured score a failed strategy is told to Optuna's own samplers, in log units."""
_ASKS = 24
_SLOW_ASKS = 4

Price = Callable[[Mapping[str, Value]], float]


@dataclass(frozen=True)
class Suggestion:
    """The next strategy, and why."""

    changes: dict[str, Value]
    because: str
    improvement: float | None = None
    """Expected improvement over the best measured strategy, in ln(throughput); None where nothing was modelled."""


@dataclass(frozen=True)
class _Question:
    """What a suggestion is made from."""

    space: Space
    told: Sequence[Told]
    known: set[Key]
    model: Predictor | None
    price_s: Price
    startup: int
    seed: int


class AdvisorSampler(optuna.samplers.BaseSampler):  # type: ignore[misc]
    """Optuna's interface to the search's own surrogate and acquisition: proposes the places of the best candidate."""

    def __init__(
        self, space: Space, known: set[Key], model: Predictor | None, price_s: Price, seed: int
    ) -> None:
        self._space, self._known, self._model = space, known, model
        self._price_s, self._seed = price_s, seed
        self.choice: Choice | None = None
        """What the latest suggestion rests on; None when every strategy is known."""

    def infer_relative_search_space(
        self,
        study: optuna.Study,  # noqa: ARG002 - Optuna's interface
        trial: optuna.trial.FrozenTrial,  # noqa: ARG002
    ) -> dict[str, optuna.distributions.BaseDistribution]:
        """Every knob of the space is proposed together."""
        return _list_distributions(self._space)

    def sample_relative(
        self,
        study: optuna.Study,
        trial: optuna.trial.FrozenTrial,  # noqa: ARG002
        search_space: dict[str, optuna.distributions.BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        """Return the place of each knob in the strategy that promises most per second."""
        told = [t.user_attrs["told"] for t in study.get_trials(deepcopy=False) if "told" in t.user_attrs]
        belief = learn(self._space, told, self._model)
        self.choice = choose(belief, self._known, self._price_s, self._seed)
        return _encode(self._space, self.choice.changes if self.choice else {})

    def sample_independent(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: optuna.trial.FrozenTrial,  # noqa: ARG002
        param_name: str,
        param_distribution: optuna.distributions.BaseDistribution,  # noqa: ARG002
    ) -> Any:
        """Refuse: every knob is proposed together."""
        raise ValueError(f"{param_name} is no knob of this space: AdvisorSampler proposes whole strategies")


def suggest(space: Space, told: Sequence[Told], tried: Sequence[Mapping[str, Value]], startup: int, seed: int,
            number: int, model: Predictor | None = None, price_s: Price = lambda _: 1.0, quick: bool = False,
            ) -> Suggestion | None:  # fmt: skip
    """Return a strategy that was never tried and breaks no coupling rule; None when the space is exhausted.

    `tried` are the changes of every trial so far (those that infrastructure lost included), `startup` the number
    of first strategies that count as the samplers' start, `number` the coming trial's number, `model` a cost model,
    `price_s` what measuring a strategy costs in seconds. `quick` skips the samplers that compute much. Each sampler
    of the ladder answers for the one before it, and the sentence says so.
    """
    if not list_dimensions(space):
        return None
    known = {key_of(changes) for changes in tried}
    question = _Question(space, told, known, model, price_s, startup, mix_seed(seed, number))
    why: list[str] = []
    ladder = (("The surrogate", _ask_surrogate), ("Optuna's GP", _ask_gp), ("Optuna's TPE", _ask_tpe))
    for name, ask in ladder[2 if quick else 0 :]:
        try:
            found = ask(question)
        except Exception as error:  # whatever a library raises, the search goes on without it
            why.append(f"{name} failed ({type(error).__name__}: {error}).")
            continue
        if found is not None:
            return Suggestion(found.changes, " ".join([*why, found.because]), found.improvement)
        if ask is _ask_surrogate:
            return None
        why.append(f"{name} found only strategies that were measured already.")
    pool = list_candidates(space, known, [], question.seed)
    if not pool:
        return None
    changes = random.Random(question.seed).choice(pool)  # noqa: S311 - reproducible, not secret
    return Suggestion(changes, " ".join([*why, f"Drawn at random: {describe_changes(changes)}."]))


def mix_seed(seed: int, number: int) -> int:
    """Return a 32-bit seed from the job's seed and a trial's number, the same on every machine."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:4], "big")


def _ask_surrogate(question: _Question) -> Suggestion | None:
    space = question.space
    sampler = AdvisorSampler(space, question.known, question.model, question.price_s, question.seed)
    study = _rebuild_study(question, sampler)
    study.ask(_list_distributions(space))
    choice = sampler.choice
    if choice is None:
        return None
    return Suggestion(choice.changes, _explain(choice, question), choice.improvement)


def _explain(choice: Choice, question: _Question) -> str:
    count = sum(t.score is not None for t in question.told)
    gain, spread = math.expm1(choice.mean), math.exp(choice.mean) * choice.sd
    what = f"{gain:+.1%} ± {spread * 100:.1f} is expected of it after {count} measured strategies"
    if choice.prior is not None:
        what += f", {math.expm1(choice.prior):+.1%} by the cost model alone"
    best = f"the best so far is put at {math.expm1(choice.incumbent):+.1%}" if choice.incumbent > 0 else (
        "none so far is put above the baseline"
    )  # fmt: skip
    return f"{describe_changes(choice.changes)}: {what}; {best}."


def _ask_gp(question: _Question) -> Suggestion | None:
    sampler = optuna.samplers.GPSampler(seed=question.seed, n_startup_trials=question.startup)
    return _ask_optuna(question, "Optuna's GP", sampler, _SLOW_ASKS)


def _ask_tpe(question: _Question) -> Suggestion | None:
    sampler = optuna.samplers.TPESampler(seed=question.seed, n_startup_trials=question.startup)
    return _ask_optuna(question, "Optuna's TPE", sampler, _ASKS)


def _ask_optuna(
    question: _Question, name: str, sampler: optuna.samplers.BaseSampler, asks: int
) -> Suggestion | None:
    study = _rebuild_study(question, sampler)
    distributions = _list_distributions(question.space)
    for _ in range(asks):
        params = study.ask(distributions).params
        changes = question.space.composer.compose(
            {d.knob.name: d.values[params[d.knob.name]] for d in list_dimensions(question.space)}
        )
        if changes is not None and key_of(changes) not in question.known:
            count = sum(t.score is not None for t in question.told)
            return Suggestion(changes, f"{name} expects a gain after {count} measured strategies: "
                              f"{describe_changes(changes)}.")  # fmt: skip
    return None


def _rebuild_study(question: _Question, sampler: optuna.samplers.BaseSampler) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    distributions = _list_distributions(question.space)
    penalty = min([0.0, *(t.score for t in question.told if t.score is not None)]) - _PENALTY
    for row in question.told:
        state = optuna.trial.TrialState.RUNNING if row.pending else optuna.trial.TrialState.COMPLETE
        value = penalty if row.score is None else row.score
        study.add_trial(
            optuna.trial.create_trial(
                state=state,
                value=None if row.pending else value,
                params=_encode(question.space, row.changes),
                distributions=distributions,
                constraints=None if row.pending else {"runs": 1.0 if row.score is None else -1.0},
                user_attrs={"told": row},
            )
        )
    return study


def _list_distributions(space: Space) -> dict[str, optuna.distributions.BaseDistribution]:
    return {d.knob.name: _distribution(d) for d in list_dimensions(space)}


def _distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    """Ordered values become places on a line, so that neighbours are alike; the rest are categories."""
    count = len(dimension.values)
    if dimension.ordered:
        return optuna.distributions.IntDistribution(0, count - 1)
    return optuna.distributions.CategoricalDistribution(tuple(range(count)))


def _encode(space: Space, changes: Mapping[str, Value]) -> dict[str, int]:
    values = {**space.context.baseline, **changes}
    return {d.knob.name: d.index_of(values[d.knob.name]) for d in list_dimensions(space)}
