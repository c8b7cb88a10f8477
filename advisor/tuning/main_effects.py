"""What each part of a strategy seems to bring, from the search's scores: a ridge regression on what trials changed."""

from collections.abc import Mapping, Sequence

from advisor.protocol.base import Value
from advisor.protocol.trials import Purpose
from advisor.tuning.ended_search import search_as_it_ended
from advisor.tuning.record import Record
from advisor.tuning.take_back import Unit

_PRIOR = 0.05
"""Standard deviation of a part's effect before anything is measured, in log units of throughput."""
_LEAST_ERROR = 0.01


def estimate_main_effects(
    record: Record, changes: Mapping[str, Value], units: Sequence[Unit]
) -> dict[Unit, float]:
    """Return for each part of the strategy the expected ln throughput that it brings, other parts being equal.

    Bayesian linear regression (ridge) of the search's scores: one coefficient for each part at the strategy's
    values, one for each knob at other values; the coefficients have mean 0 and standard deviation 0.05 beforehand.
    It only decides which knobs are taken back first.
    """
    ended = search_as_it_ended(record)
    error = max(_LEAST_ERROR, record.run_noise or 0.0)
    rows: list[tuple[set[object], float]] = []
    for trial in ended.trials_for(Purpose.SEARCH):
        score = ended.score(trial)
        if score is not None:
            rows.append((_parts_of(trial.changes, changes, units), score))
    columns: list[object] = sorted({part for parts, _ in rows for part in parts}, key=str)
    ridge = (error / _PRIOR) ** 2
    matrix = [
        [
            sum(1.0 for parts, _ in rows if a in parts and b in parts) + (ridge if a == b else 0.0)
            for b in columns
        ]
        for a in columns
    ]
    right = [sum(score for parts, score in rows if column in parts) for column in columns]
    found = dict(zip(columns, _solve(matrix, right), strict=True))
    return {unit: found.get(unit, 0.0) for unit in units}


def _parts_of(mine: Mapping[str, Value], strategy: Mapping[str, Value], units: Sequence[Unit]) -> set[object]:
    whole = [unit for unit in units if all(name in mine and mine[name] == strategy[name] for name in unit)]
    covered = {name for unit in whole for name in unit}
    return {*whole, *(name for name in mine if name not in covered)}


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solve a symmetric positive definite system by elimination."""
    size = len(right)
    rows = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    for i in range(size):
        for j in range(i + 1, size):
            factor = rows[j][i] / rows[i][i]
            if factor:
                rows[j] = [b - factor * a for a, b in zip(rows[i], rows[j], strict=True)]
    solution = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(rows[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (rows[i][size] - rest) / rows[i][i]
    return solution
