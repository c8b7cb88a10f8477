"""Calibrates the cost model: the most probable parameters, given what is known beforehand and what was measured."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from advisor.tuning.timeline import Array

_PROBE = 0.02
"""Step of the numeric derivatives, in logarithms."""
_LONGEST = 1.0
"""Most that one round moves a parameter, in logarithms."""
_ROUNDS = 12
_OUTLIER = 3.0
"""Misfits beyond that many standard deviations count linearly, not by their square."""
_WORTH_IT = 2e-3
"""Smallest improvement that makes another round worth its time, as a share."""
_SCALES = (1.0, 0.5, 0.2, 0.05)


class Unknown(IntEnum):
    """The physical parameters; all but `BEND` scale something, and are fitted as logarithms."""

    COMPUTATION = 0
    """Forward, optimizer and the rest, against the probe's phases."""
    BACKWARD = 1
    """Backward without communication, against the probe's phase."""
    HOP = 2
    """Seconds per hop between nodes."""
    INNER_HOP = 3
    WIRE = 4
    """Seconds per byte through a node's link."""
    INNER_WIRE = 5
    HANDLING = 6
    """Seconds per byte that a stream between nodes sends, receives and adds up."""
    MESSAGE = 7
    """Seconds per collective."""
    COPY = 8
    """Seconds per byte converted or copied."""
    STOLEN = 9
    """Share of a reduction's own work that backward loses beside it."""
    JITTER = 10
    """What ranks wait for each other, as a share of their computation."""
    BEND = 11
    """How much sooner gradients become ready than their place among the bytes says."""
    READING = 12
    """Seconds in which one process reads a rank's batch."""
    READER = 13
    """What a worker's reading costs against reading in the training process itself."""
    LAUNCHING = 14
    """Seconds that the host of a GPU needs to queue a step."""
    INNER_HANDLING = 15


@dataclass(frozen=True)
class Prior:
    """What is believed before anything is measured: normal in the logarithms."""

    mean: Array
    spread: Array


@dataclass(frozen=True)
class Fit:
    """The most probable parameters."""

    best: Array
    misfits: Array
    """ln(predicted / measured) of each measurement."""
    leverage: Array
    """How much each measurement itself decides what is predicted for it, 0 to 1 (the hat matrix's diagonal)."""


def fit(misfits: Callable[[Array], Array], errors: Array, prior: Prior, start: Array | None = None) -> Fit:
    """Return the maximum of the posterior by damped Gauss-Newton steps.

    `misfits` takes parameter sets (K, P) and returns ln(predicted / measured) for each of R measurements (K, R);
    `errors` (R,) are their standard deviations. Deterministic; never leaves what the prior holds for possible
    (4 standard deviations), so that few or wrong measurements cannot drive it to nonsense.
    """
    count = len(prior.mean)
    best = np.array(prior.mean if start is None else start, dtype=np.float64)
    low, high = prior.mean - 4.0 * prior.spread, prior.mean + 4.0 * prior.spread

    def cost_of(sets: Array) -> Array:
        scaled = np.abs(misfits(sets)) / errors
        robust = np.where(scaled < _OUTLIER, scaled**2, _OUTLIER * (2.0 * scaled - _OUTLIER))
        total: Array = robust.sum(axis=1) + (((sets - prior.mean) / prior.spread) ** 2).sum(axis=1)
        return total

    value = float(cost_of(best[None])[0])
    slopes, weights = np.zeros((len(errors), count)), np.ones(len(errors))
    here = misfits(best[None])[0]
    for _ in range(_ROUNDS):
        around = misfits(np.vstack([best[None], best[None] + _PROBE * np.eye(count)]))
        here, slopes = around[0], (around[1:] - around[0]).T / _PROBE
        scaled = np.abs(here) / errors
        weights = np.where(scaled < _OUTLIER, 1.0, _OUTLIER / np.maximum(scaled, 1e-12)) / errors**2
        pull = slopes.T @ (weights * here) + (best - prior.mean) / prior.spread**2
        step = -np.linalg.solve(_curvature(slopes, weights, prior), pull)
        step = np.clip(step, -_LONGEST, _LONGEST)
        tried = np.clip(np.vstack([best + scale * step for scale in _SCALES]), low, high)
        costs = cost_of(tried)
        winner = int(np.argmin(costs))
        if not float(costs[winner]) < value - _WORTH_IT * (1.0 + value):
            break
        best, value = tried[winner], float(costs[winner])
        here = misfits(best[None])[0]
    spread = np.linalg.solve(_curvature(slopes, weights, prior), slopes.T)
    leverage = np.clip(weights * np.einsum("rp,pr->r", slopes, spread), 0.0, 1.0)
    return Fit(best=best, misfits=here, leverage=leverage)


def _curvature(slopes: Array, weights: Array, prior: Prior) -> Array:
    matrix: Array = (slopes.T * weights) @ slopes + np.diag(1.0 / prior.spread**2)
    return matrix


def doubt_of(misfits: Array, leverage: Array, before: float, least: float) -> float:
    """Return the model's own doubt: the root mean square of misfits per degree of freedom left.

    It begins with two imagined measurements of misfit `before`. A measurement that alone tells what some knob does
    has a leverage near 1: it says nothing about how good the model is, and counts as nothing.
    """
    squares = float((np.minimum(np.abs(misfits), 1.0) ** 2).sum()) + 2.0 * before**2
    return max(least, math.sqrt(squares / (float((1.0 - leverage).sum()) + 2.0)))
