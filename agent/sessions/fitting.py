"""Makes a race's report fit into a request: what is too long loses its last cycles, never its meaning.

Every number of a series is then written with seven digits (clocks and losses are not that exact), and where that is not
enough the race counts as a shorter one: all arms keep the same first cycles, an even number of them, because a cycle
and its reverse belong together. A race may end after any such pair, so that everything that is said of it holds; only
its error is larger. Thinning the steps out would not do: medians, stalls and correlations are those of single steps.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from advisor.protocol.measured.messages import MOST_MESSAGE_BYTES, RaceReport
from advisor.protocol.measured.results import BlockResult

_SERIES = ("step_time_s", "losses", "loss_at_start", "per_rank_step_time_s", "per_rank_work_s")
_LEAST_KEPT = 1 / 64
"""Of a race; a report that is still too large then is not large by its steps."""


def fit_report(generation: int, results: Mapping[str, BlockResult], most: int = MOST_MESSAGE_BYTES) -> str:
    """Return the JSON of a RaceReport of at most so many bytes.

    Raises ValueError with a sentence where something else than its steps makes it larger.
    """
    body = _write(generation, results)
    kept = 1.0
    while len(body.encode()) > most and kept >= _LEAST_KEPT:
        shortened = results if kept == 1.0 else _keep_share(results, kept)
        body = _write(generation, {arm: _round(result) for arm, result in shortened.items()})
        kept *= min(0.9, most / len(body.encode()))
    if len(body.encode()) > most:
        raise ValueError(
            f"The report of the race has {len(body.encode())} bytes, of which few are its steps; {most} fit into a "
            "request. The sentences or the per-rank figures that the program gave are too long."
        )
    return body


def _write(generation: int, results: Mapping[str, BlockResult]) -> str:
    return RaceReport(generation=generation, results=dict(results)).model_dump_json()


def _round(result: BlockResult) -> BlockResult:
    rounded: dict[str, Any] = {name: _shorten(getattr(result, name)) for name in _SERIES}
    return replace(result, **rounded, loss_checks=tuple(_shorten(check) for check in result.loss_checks))


def _shorten(series: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(float(f"{value:.7g}") for value in series)


def _keep_share(results: Mapping[str, BlockResult], share: float) -> dict[str, BlockResult]:
    """The same first cycles of every arm."""
    cycles = int(share * max(len(result.segments) for result in results.values()))
    cycles = max(2, cycles - cycles % 2)
    return {arm: _cut(result, cycles, share) for arm, result in results.items()}


def _cut(result: BlockResult, cycles: int, share: float) -> BlockResult:
    count = len(result.step_time_s)
    if result.segments:
        steps = sum(result.segments[:cycles])
    else:
        whole = int(count * share)
        steps = max(min(count, result.period), whole - whole % max(1, result.period))
    if steps >= count:
        return result
    part = sum(result.step_time_s[:steps]) / sum(result.step_time_s)
    return replace(
        result,
        steps=steps,
        step_time_s=result.step_time_s[:steps],
        segments=result.segments[:cycles],
        samples=sum(result.step_samples[:steps]) if result.step_samples else result.samples * steps / count,
        step_samples=result.step_samples[:steps],
        wall_s=result.wall_s * part,
        losses=result.losses[: len(result.losses) * steps // count],
        loss_checks=result.loss_checks[:cycles],
    )
