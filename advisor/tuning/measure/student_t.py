"""Student's t distribution, without scipy."""

import math
from functools import lru_cache

_CONVERGED = 1e-14
_TINY = 1e-300


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function (Lentz's method; Abramowitz and Stegun 26.5.8)."""
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    value = d
    for m in range(1, 500):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + numerator * d
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = 1.0 + numerator / c
            c = c if abs(c) > _TINY else _TINY
            value *= c * d
        if abs(c * d - 1.0) < _CONVERGED:
            break
    return value


def _incomplete_beta(a: float, b: float, x: float) -> float:
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    scale = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1.0) / (a + b + 2.0):
        return scale * _beta_fraction(a, b, x) / a
    return 1.0 - scale * _beta_fraction(b, a, 1.0 - x) / b


def upper_tail(t: float, freedom: int) -> float:
    """Return P(T > t) of Student's t with that many degrees of freedom, for t >= 0."""
    return 0.5 * _incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))


@lru_cache(maxsize=1024)
def t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t for a probability in [0.5, 1), found by bisection.

    Raises ValueError outside that range or without a degree of freedom.
    """
    if not 0.5 <= probability < 1.0 or freedom < 1:
        raise ValueError(f"no t quantile for probability {probability} and {freedom} degrees of freedom")
    tail, low, high = 1.0 - probability, 0.0, 1.0
    while upper_tail(high, freedom) > tail:
        high *= 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        low, high = (middle, high) if upper_tail(middle, freedom) > tail else (low, middle)
    return (low + high) / 2.0
