"""Which settings carry a gain: an additive model of ln rates, believed over every subset of settings that may matter.

A setting either brings nothing or something (a spike and a slab: Mitchell and Beauchamp 1988). Each race has a level of
its own, so that what its arms share, the machine's mood, says nothing.
"""

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

_ODDS = 0.5
"""Odds, before anything is measured, that a setting of a strategy that the search chose brings something."""
_SLABS = (0.02, 0.06, 0.2, 0.6, 1.5)
"""Standard deviations that what settings bring may have, in ln(rate): equally likely before anything is measured."""
_MOST_SUBSETS = 3000
"""Subsets that are weighed: all of those of up to eleven settings, the smaller ones of more, and all together."""
_LEVEL = 2.0
"""Standard deviation of a race's own level, in ln(rate): as good as unknown."""
_LEAST_ERROR = 1e-4
"""Standard error that no arm falls short of."""
_NORMAL = NormalDist()

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Arm:
    """What one arm of a race measured."""

    race: int
    held: frozenset[int]
    """The places of the settings that it held."""
    launch: str
    """Arms of the same settings in one launch share its luck; empty where the error holds that."""
    rate: float
    """ln(rate), above the race's own level; less what the settings are known to do only together."""
    error: float
    """Its standard error within the race."""


@dataclass(frozen=True)
class Carriers:
    """What is believed of the settings, over all subsets that may be the ones that matter."""

    chances: _Array
    """Of each subset, with each size of what settings bring; together 1."""
    means: _Array
    """What each setting brings then, in ln(rate): (subsets, settings)."""
    covariances: _Array

    @property
    def expected(self) -> _Array:
        """What each setting is expected to bring, in ln(rate)."""
        found: _Array = self.chances @ self.means
        return found

    def chance_to_bring(self, places: Collection[int], least: float) -> float:
        """Return the probability that these settings bring more than `least` together, in ln(rate)."""
        chosen = sorted(places)
        means = self.means[:, chosen].sum(axis=1)
        spreads = np.sqrt(self.covariances[:, chosen][:, :, chosen].sum(axis=(1, 2)))
        above = [
            1.0 - _NORMAL.cdf((least - mean) / spread) if spread > 0.0 else float(mean > least)
            for mean, spread in zip(means, spreads, strict=True)
        ]
        return float(self.chances @ np.array(above))


def weigh_settings(arms: Sequence[Arm], settings: int, luck: float) -> Carriers:
    """Return what the arms of races say of so many settings.

    `luck` is the standard deviation of the ln ratio of two arms of one launch that no race inside it can see.
    """
    subsets = _list_subsets(settings)
    precision, pull = _put_together(arms, settings, luck)
    chosen = np.array(
        [[place in subset for place in range(settings)] for subset in subsets], dtype=np.float64
    )
    logs, means, covariances = [], [], []
    for slab in _SLABS:
        both = chosen[:, :, None] * chosen[:, None, :]
        inner = both * precision + np.eye(settings) * np.where(chosen > 0.0, 1.0 / slab**2, 1.0)[:, None, :]
        covariance = np.linalg.inv(inner) * both
        mean = np.einsum("sij,sj->si", covariance, chosen * pull)
        sizes = chosen.sum(axis=1)
        log = sizes * (math.log(_ODDS) - math.log(slab)) - 0.5 * np.linalg.slogdet(inner)[1]
        logs.append(log + 0.5 * np.einsum("si,si->s", mean, chosen * pull))
        means.append(mean)
        covariances.append(covariance)
    log = np.concatenate(logs)
    weight = np.exp(log - log.max())
    return Carriers(weight / weight.sum(), np.concatenate(means), np.concatenate(covariances))


def _list_subsets(settings: int) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for size in range(settings + 1):
        more = math.comb(settings, size)
        if len(found) + more > _MOST_SUBSETS:
            return [*found, tuple(range(settings))]
        found += itertools.combinations(range(settings), size)
    return found


def _put_together(arms: Sequence[Arm], settings: int, luck: float) -> tuple[_Array, _Array]:
    """The precision of what the settings bring, and what pulls it from nothing, with the races' levels taken out."""
    if not arms:
        return np.zeros((settings, settings)), np.zeros(settings)
    held = np.array([[place in arm.held for place in range(settings)] for arm in arms], dtype=np.float64)
    rates = np.array([arm.rate for arm in arms])
    races = np.array([arm.race for arm in arms])
    plans = [(arm.launch, arm.held) for arm in arms]
    number = {plan: place for place, plan in enumerate(dict.fromkeys(plans))}
    lucky = np.array([number[plan] for plan in plans])
    known = np.array([bool(arm.launch) for arm in arms], dtype=np.float64)
    variance = np.diag([max(_LEAST_ERROR, arm.error) ** 2 for arm in arms])
    variance += _LEVEL**2 * (races[:, None] == races)
    variance += luck**2 / 2.0 * (lucky[:, None] == lucky) * known
    solved = np.linalg.solve(variance, np.column_stack([held, rates]))
    return held.T @ solved[:, :-1], held.T @ solved[:, -1]
