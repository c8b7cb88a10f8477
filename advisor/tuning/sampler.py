"""History -> next strategy. The only file of the search that imports optuna.

Optuna never stores anything for us: a study is rebuilt in memory from our own rows for every suggestion, seeded by
the job's seed and the trial's number, so the same history always gives the same suggestion.
"""

import hashlib
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import optuna

from advisor.protocol.base import Value
from advisor.tuning.composition import describe_changes, key_of
from advisor.tuning.space import Dimension, Space

_PENALTY = 0.2
"""How far below the worst measured score a failed strategy is told, in log units."""
_ASKS = 24
_ENUMERABLE = 4096


@dataclass(frozen=True)
class Told:
    """What one earlier trial teaches the sampler."""

    changes: Mapping[str, Value]
    score: float | None
    """ln(throughput / baseline's); None when the strategy itself failed."""


@dataclass(frozen=True)
class Suggestion:
    """The next strategy, and why."""

    changes: dict[str, Value]
    because: str


def suggest(space: Space, told: Sequence[Told], tried: Sequence[Mapping[str, Value]], startup: int, seed: int,
            number: int) -> Suggestion | None:  # fmt: skip
    """Return a strategy that was never tried and breaks no coupling rule; None when the space is exhausted.

    `tried` are the changes of every trial so far (those that infrastructure lost included), `startup` the number
    of first strategies that count as the sampler's start, `number` the coming trial's number.
    """
    if not space.dimensions:
        return None
    known = {key_of(changes) for changes in tried}
    mixed = mix_seed(seed, number)
    try:
        if (changes := _ask_optuna(space, told, known, startup, mixed)) is not None:
            best = max((t.score for t in told if t.score is not None), default=0.0)
            sentence = f"Optuna's TPE expects a gain here after {len(told)} measured strategies (best so far "
            return Suggestion(changes, f"{sentence}{best:+.1%}): {describe_changes(changes)}.")
        why = "Optuna suggested only strategies that were measured already"
    except Exception as error:  # whatever the library raises, the search goes on without it
        why = f"Optuna failed ({type(error).__name__}: {error})"
    if (changes := _draw_at_random(space, known, mixed)) is None:
        return None
    return Suggestion(changes, f"{why}, so this one is drawn at random: {describe_changes(changes)}.")


def mix_seed(seed: int, number: int) -> int:
    """Return a 32-bit seed from the job's seed and a trial's number, the same on every machine."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:4], "big")


def _ask_optuna(
    space: Space, told: Sequence[Told], known: set[tuple[tuple[str, Value], ...]], startup: int, seed: int
) -> dict[str, Value] | None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {d.knob.name: _distribution(d) for d in space.dimensions}
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    scores = [t.score for t in told if t.score is not None]
    penalty = min([0.0, *scores]) - _PENALTY
    for row in told:
        study.add_trial(
            optuna.trial.create_trial(
                value=penalty if row.score is None else row.score,
                params=_encode(space, row.changes),
                distributions=distributions,
                constraints={"runs": 1.0 if row.score is None else -1.0},
            )
        )
    for _ in range(_ASKS):
        params = study.ask(distributions).params
        wishes = {d.knob.name: _decode(d, params[d.knob.name]) for d in space.dimensions}
        changes = space.composer.compose(wishes)
        if changes is not None and key_of(changes) not in known:
            return changes
    return None


def _distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    """Ordered values become places on a line, so that neighbours are alike; the rest are categories."""
    count = len(dimension.values)
    if dimension.ordered:
        return optuna.distributions.IntDistribution(0, count - 1)
    return optuna.distributions.CategoricalDistribution(tuple(range(count)))


def _encode(space: Space, changes: Mapping[str, Value]) -> dict[str, int]:
    values = {**space.context.baseline, **changes}
    return {d.knob.name: d.index_of(values[d.knob.name]) for d in space.dimensions}


def _decode(dimension: Dimension, index: int) -> Value:
    return dimension.values[index]


def _draw_at_random(
    space: Space, known: set[tuple[tuple[str, Value], ...]], seed: int
) -> dict[str, Value] | None:
    """Return an untried strategy; None when there is none, which a small space is searched through to prove."""
    choices = [d.values for d in space.dimensions]
    names = [d.knob.name for d in space.dimensions]
    dice = random.Random(seed)  # noqa: S311 - reproducible, not secret
    size = 1
    for values in choices:
        size *= len(values)
    points: list[tuple[Value, ...]]
    if size <= _ENUMERABLE:
        points = list(itertools.product(*choices))
        dice.shuffle(points)
    else:
        points = [tuple(dice.choice(values) for values in choices) for _ in range(_ENUMERABLE)]
    for point in points:
        changes = space.composer.compose(dict(zip(names, point, strict=True)))
        if changes is not None and key_of(changes) not in known:
            return changes
    return None
