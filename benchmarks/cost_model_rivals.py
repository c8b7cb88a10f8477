"""What the cost model is compared with: a regression without physics, and Pollux's formula of step times."""

import math
import random
from collections.abc import Mapping, Sequence

import numpy as np

from advisor.protocol.base import Value
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.tuning.model.cost_model import TimedStrategy

_PRIOR = 0.2
"""Standard deviation of an effect on ln(step time) before anything is measured."""
_NOISE = 0.03


class Regression:
    """Ridge regression of ln(step time): one effect per value of each knob, added up (what a table of trials gives)."""

    def __init__(self, baseline: Mapping[str, Value], base_s: float, seen: Sequence[TimedStrategy]) -> None:
        self._baseline, self._base_s = baseline, base_s
        self._features = sorted(
            {(name, value) for o in seen for name, value in self._changes(o.values).items()}, key=str
        )
        matrix = np.array([self._encode(o.values) for o in seen]).reshape(len(seen), len(self._features))
        target = np.array([math.log(o.step_time_s / base_s) for o in seen])
        weight = (_NOISE / _PRIOR) ** 2
        self._effects = np.linalg.solve(
            matrix.T @ matrix + weight * np.eye(len(self._features)), matrix.T @ target
        )

    def predict(self, values: Mapping[str, Value]) -> float:
        """Return the step time in seconds."""
        return self._base_s * math.exp(float(np.array(self._encode(values)) @ self._effects))

    def _changes(self, values: Mapping[str, Value]) -> dict[str, Value]:
        return {
            name: value
            for name, value in values.items()
            if value != self._baseline[name] and CATALOGUE[name].inactive_because(values) is None
        }

    def _encode(self, values: Mapping[str, Value]) -> list[float]:
        changes = self._changes(values)
        return [float(changes.get(name) == value) for name, value in self._features]


class Pollux:
    """T = (T_grad^γ + T_sync^γ)^(1/γ), T_sync = α + β max(K - 2, 0) within a node and across (arXiv 2008.12260).

    The batch of a rank is fixed here, so that T_grad is one number. Fitted to measured sizes (nodes, ranks, seconds) by
    the root mean square of ln(predicted / measured), with a fixed random search and refinement.
    """

    def __init__(self, points: Sequence[tuple[int, int, float]]) -> None:
        dice = random.Random(0)
        scale = points[0][2]
        best: tuple[float, ...] = (scale, 1e-4, 1e-5, 1e-3, 1e-4, 2.0)
        error = self._error(best, points)
        spread = 2.0
        for _ in range(4000):
            tried = (
                *(value * math.exp(dice.gauss(0.0, spread)) for value in best[:5]),
                min(10.0, max(1.0, best[5] + dice.gauss(0.0, spread))),
            )
            if (found := self._error(tried, points)) < error:
                best, error = tried, found
            else:
                spread = max(0.02, spread * 0.999)
        self._best = best

    def predict(self, nodes: int, ranks: int) -> float:
        """Return the step time in seconds."""
        return self._time(self._best, nodes, ranks)

    @staticmethod
    def _time(parameters: tuple[float, ...], nodes: int, ranks: int) -> float:
        compute, inner, inner_slope, outer, outer_slope, gamma = parameters
        if ranks < 2:
            return compute
        start, slope = (inner, inner_slope) if nodes < 2 else (outer, outer_slope)
        sync = start + slope * max(ranks - 2, 0)
        larger = max(compute, sync)
        total: float = larger * ((compute / larger) ** gamma + (sync / larger) ** gamma) ** (1.0 / gamma)
        return total

    def _error(self, parameters: tuple[float, ...], points: Sequence[tuple[int, int, float]]) -> float:
        squares = [math.log(self._time(parameters, n, k) / seconds) ** 2 for n, k, seconds in points]
        return math.sqrt(sum(squares) / len(squares))
