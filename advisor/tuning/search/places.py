"""A space as Optuna's samplers see it: each knob's values by their places on a line."""

from collections.abc import Mapping

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.tuning.search.candidate_pool import list_dimensions
from advisor.tuning.space.space import Dimension, Space


def list_distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return the distribution of each knob that is searched, by its name."""
    return {d.knob.name: _distribute(d) for d in list_dimensions(space)}


def locate(space: Space, changes: Mapping[str, Value]) -> dict[str, int]:
    """Return the place of a strategy's value of each knob; the nearest one where it is not among them."""
    values = {**space.context.baseline, **changes}
    return {d.knob.name: d.index_of(values[d.knob.name]) for d in list_dimensions(space)}


def read_places(space: Space, params: Mapping[str, int]) -> Changes | None:
    """Return the strategy at these places; None when no sound one is there."""
    return space.composer.compose(
        {d.knob.name: d.values[params[d.knob.name]] for d in list_dimensions(space)}
    )


def _distribute(dimension: Dimension) -> BaseDistribution:
    """Ordered values become places on a line, so that neighbours are alike; the rest are categories."""
    count = len(dimension.values)
    if dimension.ordered:
        return IntDistribution(0, count - 1)
    return CategoricalDistribution(tuple(range(count)))
