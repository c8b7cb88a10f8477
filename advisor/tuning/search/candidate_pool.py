"""The strategies that a suggestion chooses from, and how a Gaussian process sees them."""

import itertools
import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from advisor.protocol.base import Value
from advisor.protocol.kinds import Part, Place
from advisor.protocol.knobs.changes import Changes
from advisor.tuning.search.surrogate import Axis, Places
from advisor.tuning.space.composition import COMPLETED
from advisor.tuning.space.space import Dimension, Space

MOST_WISHES = 480
"""Wishes that are made into strategies at most, some 10 µs each: all there are where the space holds no more."""
_PAIRS = 20
"""Changes of two knobs that are drawn around each centre."""
_DRAWN = 60
"""Strategies that are drawn from all of a large space."""
_LEAST_SCALE = 0.01
"""What a knob is expected to change at least, in ln(throughput): even a part of no share may surprise."""
_USUAL_SCALE = 0.08
"""What a knob is expected to change where the share of the step that it acts on is unknown."""
_MOST_SCALE = 0.25
"""What a knob is expected to change at most."""
_PART_OF_ROOM = 0.5
"""Share of what there is to win in a part of a step that one knob of it usually wins."""
_MINOR = 0.3
"""What a minor knob is expected to matter, as a share of another one."""


def list_dimensions(space: Space) -> tuple[Dimension, ...]:
    """Return the knobs that the allowed rung varies: hot ones, then those that cost a launch or a compilation."""
    return (*space.dimensions, *space.costly)


def list_axes(space: Space) -> tuple[Axis, ...]:
    """Return how the process sees each knob of `list_dimensions`."""
    return tuple(
        Axis(_spread(d), d.ordered, _expect_effect(d, space.shares.get(d.knob.part)), d.knob.part.value)
        for d in list_dimensions(space)
    )


def _expect_effect(dimension: Dimension, share: float | None) -> float:
    """Return the standard deviation of ln(throughput) that a knob is expected to cause before it was tried.

    A knob that acts on a share of the step can bring ln(1 / (1 - share)) at most; half of that is usual.
    """
    if dimension.knob.place is Place.OWN:
        return _MOST_SCALE
    usual = _USUAL_SCALE
    if share is not None and dimension.knob.part is not Part.STEP:
        usual = _PART_OF_ROOM * -math.log(1.0 - min(share, 0.95))
    minor = _MINOR if dimension.knob.minor else 1.0
    return max(_LEAST_SCALE, min(_MOST_SCALE, usual) * minor)


def _spread(dimension: Dimension) -> tuple[float, ...]:
    """Return where each value lies between 0 and 1: by its logarithm, 0 standing one halving below the least other."""
    if not dimension.ordered:
        return tuple(float(i) for i in range(len(dimension.values)))
    numbers = [float(value) for value in dimension.values]
    least = min((n for n in numbers if n > 0), default=1.0)
    logs = [math.log(n if n > 0 else least / 2.0) for n in numbers]
    low, width = logs[0], (logs[-1] - logs[0]) or 1.0
    return tuple((at - low) / width for at in logs)


def place(space: Space, strategies: Sequence[Mapping[str, Value]]) -> Places:
    """Return the strategies (changes against the baseline) as rows of places, one column for each knob."""
    dimensions = list_dimensions(space)
    columns = {d.knob.name: (j, d) for j, d in enumerate(dimensions)}
    own = [d.index_of(space.context.baseline[d.knob.name]) for d in dimensions]
    places = np.tile(np.array(own, dtype=np.int64), (len(strategies), 1))
    found: dict[tuple[str, Value], int] = {}
    for row, strategy in enumerate(strategies):
        for name, value in strategy.items():
            if name in columns:
                column, dimension = columns[name]
                if (name, value) not in found:
                    found[name, value] = dimension.index_of(value)
                places[row, column] = found[name, value]
    return places


def compose_new(
    space: Space, wishes: Iterable[Mapping[str, Value]], seen: Collection[Changes]
) -> list[Changes]:
    """Return the sound strategies that the wishes make and that are not among `seen`, without duplicates."""
    found: dict[Changes, None] = {}
    for wish in wishes:
        changes = space.composer.compose(wish)
        if changes is not None and changes not in seen:
            found[changes] = None
    return list(found)


def list_candidates(
    space: Space, known: Collection[Changes], centres: Sequence[Mapping[str, Value]], seed: int
) -> list[Changes]:
    """Return sound strategies that are not `known`, without duplicates: all there are in a small space.

    In a large one: every one-knob change of the baseline and of `centres` (the best strategies so far), changes of two
    knobs of theirs, and random strategies that change ever more knobs. The work is bounded.
    """
    dimensions = list_dimensions(space)
    wishes: Iterable[dict[str, Value]]
    if math.prod(len(d.values) for d in dimensions) <= MOST_WISHES:
        names = [d.knob.name for d in dimensions]
        wishes = (
            dict(zip(names, point, strict=True))
            for point in itertools.product(*(d.values for d in dimensions))
        )
    else:
        dice = random.Random(seed)  # noqa: S311 - reproducible, not secret
        wishes = itertools.islice(_draw_wishes(space, centres, dice), MOST_WISHES)
    return compose_new(space, wishes, known)


def list_neighbours(space: Space, changes: Mapping[str, Value]) -> Iterator[dict[str, Value]]:
    """Yield the wishes that differ from a strategy in one knob that is not idle in it."""
    values, wished = {**space.context.baseline, **changes}, _leave_completion(space, changes)
    for dimension in _list_active(space, values):
        for value in dimension.values:
            if value != values[dimension.knob.name]:
                yield {**wished, dimension.knob.name: value}


def _leave_completion(space: Space, changes: Mapping[str, Value]) -> dict[str, Value]:
    """Return a strategy without the knobs that the search does not vary and the composer set to complete it.

    The composer sets them again where the neighbour needs them.
    """
    varied = {dimension.knob.name for dimension in list_dimensions(space)}
    return {name: value for name, value in changes.items() if name in varied or name not in COMPLETED}


def _list_active(space: Space, values: Mapping[str, Value]) -> list[Dimension]:
    """Return the knobs that mean something in a strategy (a value of every knob)."""
    return [d for d in list_dimensions(space) if d.knob.inactive_because(values) is None]


def _draw_wishes(
    space: Space, centres: Sequence[Mapping[str, Value]], dice: random.Random
) -> Iterator[dict[str, Value]]:
    dimensions = list_dimensions(space)
    for centre in ({}, *centres):
        yield from list_neighbours(space, centre)
    for centre in centres:
        active = _list_active(space, {**space.context.baseline, **centre})
        for _ in range(_PAIRS):
            some = dice.sample(active, min(2, len(active)))
            yield {**_leave_completion(space, centre), **{d.knob.name: dice.choice(d.values) for d in some}}
    for _ in range(_DRAWN):
        some = dice.sample(dimensions, dice.randint(1, len(dimensions)))
        yield {d.knob.name: dice.choice(d.values) for d in some}
