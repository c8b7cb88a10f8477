"""Forecast step times against the truth: how far off they are, and how many truths lie within their bands."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean

import numpy as np


@dataclass(frozen=True)
class Forecasts:
    """Predicted step times in seconds, their bands, and the truths."""

    predicted: list[float]
    bands: list[float]
    """Half of each band, as a factor minus 1."""
    actual: list[float]

    @property
    def error(self) -> float:
        """Mean absolute error, as a share."""
        return mean_error(self.predicted, self.actual)

    @property
    def bias(self) -> float:
        """Mean error with its sign: above 0 where the model predicts steps that are too long."""
        return fmean(p / a - 1.0 for p, a in zip(self.predicted, self.actual, strict=True))

    @property
    def rank(self) -> float:
        """Spearman's rank correlation."""
        return rank_correlation(self.predicted, self.actual)

    @property
    def covered(self) -> float:
        """Share of the truths that lie within their bands."""
        each = zip(self.predicted, self.bands, self.actual, strict=True)
        return fmean(p / (1.0 + band) <= a <= p * (1.0 + band) for p, band, a in each)

    def list_band(self) -> list[object]:
        """Return the cells of a row: half of the mean band, and the share of truths within."""
        return [f"±{fmean(self.bands):.0%}", f"{self.covered:.0%}"]


def join(forecasts: Sequence[Forecasts]) -> Forecasts:
    """Return several draws' forecasts as one."""
    return Forecasts(
        predicted=list(chain.from_iterable(f.predicted for f in forecasts)),
        bands=list(chain.from_iterable(f.bands for f in forecasts)),
        actual=list(chain.from_iterable(f.actual for f in forecasts)),
    )


def mean_error(predicted: Sequence[float], actual: Sequence[float]) -> float:
    """Mean absolute error of step times, as a share."""
    return fmean(abs(p / a - 1.0) for p, a in zip(predicted, actual, strict=True))


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation."""
    ranks = [np.argsort(np.argsort(np.array(series))) for series in (first, second)]
    return float(np.corrcoef(*ranks)[0, 1])
