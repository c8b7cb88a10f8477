"""History -> next strategies: by our own surrogate, or by the sampler of Optuna that the job names.

The only file of the search that imports Optuna. Its samplers get the history as finished trials of a study, strategies
that failed as infeasible ones, and answer with places on the axes of the knobs. Our own, a Gaussian process over
strategies with a knowledge gradient, is asked first where the job names none; Optuna's GP and TPE stand behind it, for
the day when it raises.
Nothing is stored: a study is rebuilt in memory for every suggestion, seeded by the job's seed and the race's number, so
that the same history always gives the same suggestion.
"""

import hashlib
import importlib
import inspect
import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import optuna

from advisor.protocol.asked.jobs import HUB
from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.tuning.search.acquisition import Choice, Price, choose
from advisor.tuning.search.belief import Belief, Observation, Predictor, learn, merge_repeats
from advisor.tuning.search.candidate_pool import list_candidates, list_dimensions
from advisor.tuning.space.space import Dimension, Space

__all__ = ["Observation", "Suggestion", "mix_seed", "suggest"]

MOST_ARMS = 4
"""Strategies of one race at most, beside the baseline: more of them wait for each other."""
_PENALTY = 0.2
"""How far below the worst measured score a failed strategy is told to Optuna's own samplers, in log units."""
_ASKS = 24
"""How often a sampler of Optuna is asked for a strategy that may be chosen, before it is given up."""
_SLOW_ASKS = 4
"""The same for its GP, which takes a tenth of a second for each."""
_MOST_TOLD = 60
"""Strategies that Optuna's own samplers are told at most, the latest ones: their time grows with the number."""
_STARTUP = 4
"""Told strategies below which Optuna's own samplers draw at random."""
_BEHIND = ("GPSampler", "TPESampler")
"""Optuna's samplers that are asked, one after the other, where the first of the ladder raises."""
_LEARNS_AFTER = {"GPSampler", "TPESampler"}
"""Samplers that can be told so."""


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
class _Question:
    """What suggestions are made from."""

    space: Space
    observations: Sequence[Observation]
    never: frozenset[Changes]
    """Strategies that must not be chosen."""
    model: Predictor | None
    price_s: Price
    seed: int
    count: int
    belief: Callable[[], Belief] | None


_Ask = Callable[[_Question], list[Suggestion]]


def suggest(space: Space, observations: Sequence[Observation], barred: Sequence[Mapping[str, Value]], seed: int,
            number: int, count: int = 1, model: Predictor | None = None, price_s: Price = lambda _: 1.0,
            quick: bool = False, belief: Callable[[], Belief] | None = None,
            sampler: str = "") -> list[Suggestion]:  # fmt: skip
    """Return the strategies of the next race, at most `count` (1 … 4), most worth first; empty when none is left.

    Measured strategies may come again; those that failed or are under way never do, nor do `barred` ones (known to be
    idle, lost, measured where no repeat is wanted). `number` is the coming race's number, `model` a cost model,
    `price_s` what measuring a strategy costs in seconds. `quick` skips the samplers that compute much; `belief` is for
    callers who keep what `learn` returned for the same observations. `sampler` names one of Optuna's by its class, or
    a package of OptunaHub's by hub:NAME, to be asked in place of the surrogate. Each sampler of the ladder answers for
    the one before it, and the sentence says so.
    """
    if not list_dimensions(space):
        return []
    failed = {o.changes for o in observations if o.score is None}
    question = _Question(
        space=space,
        observations=observations,
        never=frozenset(failed | {Changes(changes) for changes in barred}),
        model=model,
        price_s=price_s,
        seed=mix_seed(seed, number),
        count=max(1, min(MOST_ARMS, count)),
        belief=belief,
    )
    why: list[str] = []
    ladder: list[tuple[str, _Ask]] = [
        (_title(name), _ask_named(name)) for name in dict.fromkeys((sampler, *_BEHIND)) if name
    ]
    if not sampler:
        ladder.insert(0, ("The surrogate", _ask_surrogate))
    if quick:
        ladder = ladder[-1:]
    for name, ask in ladder:
        try:
            found = ask(question)
        except Exception as error:  # whatever a library raises, the search goes on without it
            why.append(f"{name} failed ({type(error).__name__}: {error}).")
            continue
        if found or ask is _ask_surrogate:
            return [replace(s, because=" ".join([*why, s.because])) for s in found]
        why.append(f"{name} found only strategies that were measured already.")
    known = {*question.never, *(o.changes for o in observations)}
    pool = list_candidates(space, known, [], question.seed)
    drawn = random.Random(question.seed).sample(pool, min(question.count, len(pool)))  # noqa: S311 - reproducible
    return [Suggestion(c, " ".join([*why, f"Drawn at random: {c.describe()}."])) for c in drawn]


def mix_seed(seed: int, number: int) -> int:
    """Return a 32-bit seed from the job's seed and a race's number, the same on every machine."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:4], "big")


def _ask_surrogate(question: _Question) -> list[Suggestion]:
    belief = (
        question.belief() if question.belief else learn(question.space, question.observations, question.model)
    )
    return [
        Suggestion(choice.changes, _explain(choice, belief), choice.improvement, choice.repeat, choice.mean)
        for choice in choose(belief, question.never, question.price_s, question.seed, question.count)
    ]


def _explain(choice: Choice, belief: Belief) -> str:
    gain, spread = math.expm1(choice.mean), math.exp(choice.mean) * choice.sd
    what = f"predicted {gain:+.1%} ± {spread * 100:.1f} after {belief.count} measured strategies"
    if choice.prior is not None:
        what += f", {math.expm1(choice.prior):+.1%} by the cost model alone"
    best = f"best so far {math.expm1(choice.incumbent):+.1%}" if choice.incumbent > 0 else (
        "none so far is predicted to beat the baseline"
    )  # fmt: skip
    again = "Measured again, because it may be the best: " if choice.repeat else ""
    return f"{again}{choice.changes.describe()}: {what}; {best}."


def _ask_named(name: str) -> _Ask:
    """One of Optuna's own samplers, by the name of its class, or one of OptunaHub, by the name of its package."""

    def ask(question: _Question) -> list[Suggestion]:
        if name.startswith(HUB):
            return _ask_optuna(question, name, _make_hub_sampler(name.removeprefix(HUB), question))
        kind = getattr(optuna.samplers, name)
        startup = {"n_startup_trials": _STARTUP} if name in _LEARNS_AFTER else {}
        return _ask_optuna(question, name, kind(seed=question.seed, **startup))

    return ask


def _make_hub_sampler(name: str, question: _Question) -> optuna.samplers.BaseSampler:
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
        if isinstance(kind, type) and issubclass(kind, optuna.samplers.BaseSampler)
        and not inspect.isabstract(kind)
    }  # fmt: skip
    named = {kind for kind in kinds if kind.__name__.lower() == name.replace("_", "")} or kinds
    if len(named) != 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds)) or "none"
        raise ValueError(f"one sampler was expected in {package}, and it exports {names}")
    (kind,) = named
    taken = inspect.signature(kind).parameters
    given = {"seed": question.seed, "search_space": _list_distributions(question.space)}
    return kind(**{word: value for word, value in given.items() if word in taken})


def _title(name: str) -> str:
    """Return the sampler's name in a sentence."""
    return f"OptunaHub's {name.removeprefix(HUB)}" if name.startswith(HUB) else f"Optuna's {name}"


def _ask_optuna(question: _Question, name: str, sampler: optuna.samplers.BaseSampler) -> list[Suggestion]:
    """Ask one of Optuna's own samplers, which know no repeats: each strategy once."""
    study = _create_study(sampler)
    distributions = _list_distributions(question.space)
    scored = merge_repeats(question.observations)[-_MOST_TOLD:]
    rows = {s.changes: (s.changes, s.score) for s in scored}
    penalty = min([0.0, *(s.score for s in scored)]) - _PENALTY
    for observation in [o for o in question.observations if o.score is None][-_MOST_TOLD:]:
        rows.setdefault(observation.changes, (observation.changes, penalty))
    for told, score in rows.values():
        study.add_trial(
            optuna.trial.create_trial(
                value=score,
                params=_encode(question.space, told),
                distributions=distributions,
                constraints={"runs": 1.0 if score == penalty else -1.0},
            )
        )
    known = {*question.never, *(o.changes for o in question.observations)}
    found: list[Suggestion] = []
    for _ in range(_SLOW_ASKS if name == "GPSampler" else _ASKS):
        changes = _decode(question.space, study.ask(distributions).params)
        if changes is not None and changes not in known:
            known.add(changes)
            because = f"{_title(name)} proposes it after {len(scored)} measured strategies: "
            found.append(Suggestion(changes, f"{because}{changes.describe()}."))
            if len(found) == question.count:
                break
    return found


def _decode(space: Space, params: Mapping[str, int]) -> Changes | None:
    """Return the strategy at these places; None when no sound one is there."""
    return space.composer.compose(
        {d.knob.name: d.values[params[d.knob.name]] for d in list_dimensions(space)}
    )


def _create_study(sampler: optuna.samplers.BaseSampler) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="maximize", sampler=sampler)


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
