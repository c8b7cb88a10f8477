"""Calibrates the cost model: the most probable parameters, given what is known beforehand and what was measured."""

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np

from advisor.tuning.model.timeline import Array

_PROBE = 0.02
"""Step of the numeric derivatives, in logarithms."""
_LONGEST = 1.0
"""Most that one round moves a parameter, in logarithms."""
_ROUNDS = 6
"""Gauss-Newton steps at most; four are usual."""
_OUTLIER = 3.0
"""Misfits beyond that many standard deviations count linearly, not by their square."""
_WORTH_IT = 1e-2
"""Smallest improvement that makes another round worth its time, as a share."""
_NINE_OF_TEN = 1.645
"""Standard deviations that a normal variable keeps within in nine of ten cases."""
_SCALES = (1.0, 0.5, 0.2, 0.05)
"""Parts of a step that are tried; the best is taken."""


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
    covariance: Array
    """How far the parameters may be off together, (P, P): the inverse of the posterior's curvature."""


class Misfits(Protocol):
    """What is fitted: R measurements, P parameters."""

    def find_slopes(self, best: Array, step: float, others: Array) -> tuple[Array, Array, Array]:
        """Return ln(predicted / measured) for one set (R,), its derivatives (R, P) by steps of that size, and the same
        for other sets (K, R): one call for all is far cheaper than one for each.
        """


def fit(misfits: Misfits, errors: Array, prior: Prior) -> Fit:
    """Return the maximum of the posterior by damped Gauss-Newton steps.

    `errors` (R,) are the measurements' standard deviations. Deterministic and bounded; never leaves what the prior
    holds for possible (4 standard deviations), so that few or wrong measurements cannot drive it to nonsense.
    """
    low, high = prior.mean - 4.0 * prior.spread, prior.mean + 4.0 * prior.spread
    scales = np.array(_SCALES)

    def cost_of(sets: Array, found: Array) -> Array:
        scaled = np.abs(found) / errors
        robust = np.where(scaled < _OUTLIER, scaled**2, _OUTLIER * (2.0 * scaled - _OUTLIER))
        total: Array = robust.sum(axis=1) + np.square((sets - prior.mean) / prior.spread).sum(axis=1)
        return total

    best = np.array(prior.mean, dtype=np.float64)
    here, slopes, _ = misfits.find_slopes(best, _PROBE, best[None])
    value, usual = float(cost_of(best[None], here[None])[0]), 0
    for _ in range(_ROUNDS):
        weights = _weigh(here, errors)
        pull = slopes.T @ (weights * here) + (best - prior.mean) / prior.spread**2
        step = np.clip(-np.linalg.solve(_curvature(slopes, weights, prior), pull), -_LONGEST, _LONGEST)
        tried = np.clip(best + scales[:, None] * step, low, high)
        # The derivatives where this round probably ends come with the costs of all its steps.
        there, slopes_there, found = misfits.find_slopes(tried[usual], _PROBE, tried)
        costs = cost_of(tried, found)
        winner = int(np.argmin(costs))
        gained = value - float(costs[winner])
        if gained <= _WORTH_IT * (1.0 + value):
            break
        if winner != usual:
            there, slopes_there, _ = misfits.find_slopes(tried[winner], _PROBE, tried[:1])
        best, here, slopes, value, usual = tried[winner], there, slopes_there, value - gained, winner
    weights = _weigh(here, errors)
    covariance = np.linalg.inv(_curvature(slopes, weights, prior)).astype(np.float64)
    leverage = np.clip(weights * np.einsum("rp,pq,rq->r", slopes, covariance, slopes), 0.0, 1.0)
    return Fit(best=best, misfits=here, leverage=leverage, covariance=covariance)


def _weigh(here: Array, errors: Array) -> Array:
    """Precision of each measurement; less for an outlier, whose misfit counts linearly."""
    scaled = np.abs(here) / errors
    weights: Array = np.where(scaled < _OUTLIER, 1.0, _OUTLIER / np.maximum(scaled, 1e-12)) / errors**2
    return weights


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


def band_of(doubt: float) -> float:
    """Return half of the band that holds nine of ten truths, as a factor minus 1, of a standard deviation of ln."""
    return math.expm1(_NINE_OF_TEN * doubt)
