"""The strategies that a suggestion chooses from, and how a Gaussian process sees them."""

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from advisor.protocol.base import Value
from advisor.protocol.knobs import Part
from advisor.tuning.composition import key_of
from advisor.tuning.space import Dimension, Space
from advisor.tuning.surrogate import Axis, Places

Key = tuple[tuple[str, Value], ...]

_ENUMERABLE = 1500
"""Wishes that are all made into strategies where the space holds no more: about a tenth of a second."""
_DRAWN = 400
_PAIRS = 150
_LEAST_SCALE = 0.01
_USUAL_SCALE = 0.08
_MOST_SCALE = 0.25
_PART_OF_ROOM = 0.5
_MINOR = 0.3
_MINOR_KNOBS = frozenset(
    {
        "last_comm_group_size_MB",
        "fuse_grad_size_in_TFLOPS",
        "num_iteration_per_drop_scope",
        "hierarchical_allreduce_inter_nranks",
        "fp16_allreduce_dtype",
        "amp_dtype",
        "loader_prefetch_factor",
        "loader_pin_memory",
        "FLAGS_fraction_of_gpu_memory_to_use",
        "num_iteration_per_run",
    }
)
"""Knobs that refine what others do: they are expected to matter a third as much."""


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
    usual = _USUAL_SCALE
    if share is not None and dimension.knob.part is not Part.STEP:
        usual = _PART_OF_ROOM * -math.log(1.0 - min(share, 0.95))
    minor = _MINOR if dimension.knob.name in _MINOR_KNOBS else 1.0
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
    places = np.zeros((len(strategies), len(dimensions)), dtype=np.int64)
    for j, dimension in enumerate(dimensions):
        name = dimension.knob.name
        own = dimension.index_of(space.context.baseline[name])
        found = {value: dimension.index_of(value) for value in {s[name] for s in strategies if name in s}}
        places[:, j] = [found[s[name]] if name in s else own for s in strategies]
    return places


def list_candidates(
    space: Space, known: set[Key], centres: Sequence[Mapping[str, Value]], seed: int
) -> list[dict[str, Value]]:
    """Return sound strategies that are not `known`, without duplicates: all there are in a small space.

    In a large one: every one-knob change of `centres` (the best strategies so far), changes of two knobs of theirs, and
    random strategies that change ever more knobs. The work is bounded.
    """
    dimensions = list_dimensions(space)
    size = math.prod(len(d.values) for d in dimensions)
    wishes: Iterable[dict[str, Value]]
    if size <= _ENUMERABLE:
        names = [d.knob.name for d in dimensions]
        wishes = (
            dict(zip(names, point, strict=True))
            for point in itertools.product(*(d.values for d in dimensions))
        )
    else:
        wishes = itertools.islice(_draw_wishes(dimensions, centres, random.Random(seed)), _ENUMERABLE)  # noqa: S311
    found: dict[Key, dict[str, Value]] = {}
    for wish in wishes:
        changes = space.composer.compose(wish)
        if changes is not None and (key := key_of(changes)) not in known and key not in found:
            found[key] = changes
    return list(found.values())


def list_neighbours(space: Space, changes: Mapping[str, Value]) -> Iterator[dict[str, Value]]:
    """Yield the wishes that differ from a strategy in one knob."""
    for dimension in list_dimensions(space):
        own = changes.get(dimension.knob.name, space.context.baseline[dimension.knob.name])
        for value in dimension.values:
            if value != own:
                yield {**changes, dimension.knob.name: value}


def _draw_wishes(
    dimensions: Sequence[Dimension], centres: Sequence[Mapping[str, Value]], dice: random.Random
) -> Iterator[dict[str, Value]]:
    for centre in ({}, *centres):
        for dimension in dimensions:
            for value in dimension.values:
                yield {**centre, dimension.knob.name: value}
    for centre in centres:
        for _ in range(_PAIRS):
            yield {**centre, **{d.knob.name: dice.choice(d.values) for d in dice.sample(dimensions, 2)}}
    for _ in range(_DRAWN):
        some = dice.sample(dimensions, dice.randint(1, len(dimensions)))
        yield {d.knob.name: dice.choice(d.values) for d in some}
