"""What one race says of two of its arms: the ln ratio of their throughputs, with its standard error.

The unit is the cycle, in which every arm has one segment: what the arms of a cycle share (the launch, the machine's
drift) cancels. Estimators, errors and what simulations showed of them: docs/decisions/0011.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from advisor.protocol.measured.estimates import mean_step_s, rate_of
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Block, Contrast

_LONGEST_EXCESS = 0.5
"""How much longer than its own arm's median a step counts at most, in medians of the slower arm: the same seconds for
both arms. Whatever slows steps of the machine adds as many seconds to the one arm's as to the other's, and a limit
relative to each arm's own median would leave the slower arm more of them."""
_MOST_BATCHES = 32
"""Batches of consecutive cycles whose spread is the error: enough degrees of freedom, and long enough for the
interference of seconds to fall within one."""
_FEW_CYCLES = 6
"""Below this many cycles their own spread is too small too often: the spread of single steps has a say too."""
_BLOCK_BATCHES = 6
_LEAST_IN_BATCH = 3
"""Batches of a block that did not alternate, and the fewest steps in one: those of `estimate_centre`."""
_MOST_CORRELATION = 0.8
"""Largest lag-1 correlation that is believed: it makes an error three times larger."""
_UNKNOWN_ERROR = 0.1
"""Standard error of a ln mean step time of which nothing shows one (a single step): 10 %."""
_FEWEST_DIFFERENCES = 8
"""Differences of neighbouring segments below which a forecast asks single steps as well."""
_LEAST_S = 1e-9
"""Shortest step time in seconds, so that logarithms exist."""

_Array = NDArray[np.float64]
_Counts = NDArray[np.int64]


@dataclass(frozen=True)
class _Arm:
    """The time of one arm in every segment, as measured and with its stalls capped."""

    total: _Array
    """Seconds."""
    typical: _Array
    """Seconds, every unit capped at the same excess in both arms."""
    influence: _Array
    """The same with what each unit does to the cap: what `typical` varies by."""
    steps: _Array
    units: _Array
    """Influence of every unit (a period, or a step) on the mean step time, in order, in seconds."""
    samples: _Array
    """In every segment."""
    unit_samples: _Array
    """A step's, of every unit."""


@dataclass(frozen=True)
class _Piece:
    """Consecutive steps of one arm."""

    times: _Array
    samples: _Array
    sizes: _Counts
    """Steps of each segment."""

    def sum_segments(self, values: _Array) -> _Array:
        return np.add.reduceat(values, np.cumsum(self.sizes) - self.sizes)


def contrast_arms(arm: BlockResult, reference: BlockResult) -> Contrast | None:
    """Return what a race says of ln(samples per second of `arm` / of `reference`); None where one has no timed step.

    Cycles in which one of them has no step are left out. A mean step time is the sum over all cycles by their steps,
    because the mean of the cycles' own ln ratios is biased where segments are short and tails heavy. It is told twice:
    over all of the time, and with slow steps capped at the same excess in seconds. The error comes
    from the cycles' linearised residuals (Cochran 1977, section 6.4), summed over batches of consecutive cycles and
    enlarged by the correlation that batches still show (a first-order autoregression). Below six cycles it is at least
    what the single steps say. Results without segments were measured one after the other: the errors of six batches of
    each are added. With a period above 1 the unit that is capped is the period, for both arms where the segments allow
    it. Where steps differ in their samples, as with batches of graphs or of so many tokens, both sums are of the same
    steps, and the residual is that of their ratio (Cochran 1977, section 6.5): what longer steps owe to more samples
    is no noise, and what the counts alone vary by is.
    """
    kept = _pair_cycles(arm, reference)
    if kept is not None and int(kept.sum()) >= 2:
        units = _choose_units(arm, reference, kept)
        first, second = _sum_arms(_keep_segments(arm, kept), _keep_segments(reference, kept), units)
        cycles = len(first.steps)
        counts = _linearise(first.samples, first) - _linearise(second.samples, second)
        whole = _linearise(first.total, first) - _linearise(second.total, second) - counts
        capped = _linearise(first.influence, first) - _linearise(second.influence, second) - counts
        error, freedom = _measure_spread(capped)
        total_error, _ = _measure_spread(whole)
        excess_error, _ = _measure_spread(whole - capped)
        if cycles < _FEW_CYCLES:
            error = max(error, math.hypot(_error_of_arm(first), _error_of_arm(second)))
            total_error = max(total_error, error)
    elif arm.step_time_s and reference.step_time_s:
        units = max(1, arm.period), max(1, reference.period)
        first, second = _sum_arms(_cut_block(arm, units[0]), _cut_block(reference, units[1]), units)
        cycles = 0
        error, freedom = _add_errors(
            _spread_of_block(first.influence, first), _spread_of_block(second.influence, second)
        )
        total_error, _ = _add_errors(
            _spread_of_block(first.total, first), _spread_of_block(second.total, second)
        )
        excess_error = math.sqrt(max(0.0, total_error**2 - error**2))
    else:
        return None
    gain = math.log(_mean_of(first.samples, first) / _mean_of(second.samples, second))
    steps = float(first.steps.sum() + second.steps.sum())
    excess_s = float((first.total - first.typical).sum() + (second.total - second.typical).sum()) / steps
    own_s, other_s = _mean_of(first.typical, first), _mean_of(second.typical, second)
    return Contrast(
        mean=gain + math.log(other_s / own_s),
        error=error,
        freedom=freedom,
        cycles=cycles,
        total=gain + math.log(_mean_of(second.total, second) / _mean_of(first.total, first)),
        total_error=total_error,
        per_step=gain + math.log((other_s + excess_s) / (own_s + excess_s)),
        excess_error=excess_error,
        slow_shares=(_share_slow(second), _share_slow(first)),
    )


def merge_contrasts(races: Sequence[Contrast]) -> Contrast:
    """Return several races of one launch as one, weighted by their cycles."""
    if len(races) == 1:
        return races[0]
    weights = np.array([max(1, race.cycles) for race in races]) / sum(max(1, race.cycles) for race in races)

    def mean_of(values: Sequence[float]) -> float:
        return float(weights @ np.array(values))

    def error_of(values: Sequence[float]) -> float:
        return float(np.linalg.norm(weights * np.array(values)))

    first, second = zip(*(race.slow_shares for race in races), strict=True)
    return Contrast(
        mean=mean_of([race.mean for race in races]),
        error=error_of([race.error for race in races]),
        freedom=math.fsum(race.freedom for race in races),
        cycles=sum(race.cycles for race in races),
        total=mean_of([race.total for race in races]),
        total_error=error_of([race.total_error for race in races]),
        per_step=mean_of([race.per_step for race in races]),
        excess_error=error_of([race.excess_error for race in races]),
        slow_shares=(mean_of(first), mean_of(second)),
    )


def mean_step_over(blocks: Sequence[Block]) -> float:
    """Return the mean over the blocks of their mean step, in seconds; 0 without a timed step."""
    return _mean([mean_step_s(b.result) for b in blocks if b.result and b.result.step_time_s])


def mean_rate(blocks: Sequence[Block]) -> float:
    """Return samples per second over launches that each train equally long: what every page calls a strategy's rate."""
    return _mean([rate for b in blocks if b.result and (rate := rate_of(b)) > 0.0])


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def forecast_errors(step_time_s: Sequence[float], segment_steps: int) -> Callable[[float], float]:
    """Return the standard error of the ln ratio that a race of two arms would have, from one arm's steps.

    What is returned takes the seconds of timed steps of both arms together; `segment_steps` is the steps of a segment.
    Neighbouring segments of the block stand for the two segments of a cycle: the mean square of their differences (a
    variogram at one segment's distance) is the variance of a cycle's ln ratio, and falls with the number of cycles
    that fit into the race. Blocks of few segments also ask their single steps, and the larger answer counts.
    """
    times = np.maximum(np.asarray(step_time_s, dtype=np.float64), _LEAST_S)
    size = max(1, min(segment_steps, len(times) // 2))
    if len(times) < 2:
        return lambda _: math.sqrt(2.0) * _UNKNOWN_ERROR
    capped = _cap(times, _LONGEST_EXCESS * float(np.median(times)))[1]
    centre = float(capped.mean())
    count = len(capped) // size
    segments = capped[: count * size].reshape(count, size).mean(axis=1) / centre
    variance = float(np.mean(np.diff(segments) ** 2))
    if count <= _FEWEST_DIFFERENCES:
        variance = max(variance, 2.0 * _error_of_units(capped) ** 2 * len(capped) / size)
    cycle_s = 2.0 * size * float(times.mean())
    return lambda race_s: math.sqrt(variance / max(1.0, race_s / cycle_s))


# --- cycles ------------------------------------------------------------------------------------------


def _pair_cycles(arm: BlockResult, reference: BlockResult) -> NDArray[np.bool_] | None:
    """Which cycles both arms have; None where one of the results does not say how its steps fall into cycles."""
    for result in (arm, reference):
        if not result.segments or sum(result.segments) != len(result.step_time_s):
            return None
    count = min(len(arm.segments), len(reference.segments))
    return (np.array(arm.segments[:count]) > 0) & (np.array(reference.segments[:count]) > 0)


def _choose_units(arm: BlockResult, reference: BlockResult, kept: NDArray[np.bool_]) -> tuple[int, int]:
    """The steps that are capped together: one period of both arms where segments hold whole ones of it."""
    own, other = max(1, arm.period), max(1, reference.period)
    both = math.lcm(own, other)
    sizes = np.concatenate([np.array(result.segments[: len(kept)])[kept] for result in (arm, reference)])
    return (both, both) if bool(np.all(sizes % both == 0)) else (own, other)


def _keep_segments(result: BlockResult, kept: NDArray[np.bool_]) -> _Piece:
    """The steps in the kept segments."""
    sizes = np.array(result.segments, dtype=np.int64)
    wanted = np.zeros(len(sizes), dtype=bool)
    wanted[: len(kept)] = kept
    steps = np.repeat(wanted, sizes)
    return _Piece(_times_of(result)[steps], _samples_of(result)[steps], sizes[wanted])


def _cut_block(result: BlockResult, unit: int) -> _Piece:
    """Whole units of a block that did not alternate, in up to six batches of them."""
    times = _times_of(result)
    unit = min(unit, len(times))
    whole = len(times) // unit
    batches = min(whole, _BLOCK_BATCHES, max(2, whole // _LEAST_IN_BATCH))
    edges = np.round(np.linspace(0, whole, batches + 1)).astype(np.int64)
    return _Piece(times[: whole * unit], _samples_of(result)[: whole * unit], np.diff(edges) * unit)


def _times_of(result: BlockResult) -> _Array:
    return np.maximum(np.asarray(result.step_time_s, dtype=np.float64), _LEAST_S)


def _samples_of(result: BlockResult) -> _Array:
    found = result.step_samples or [result.samples_per_step] * len(result.step_time_s)
    return np.maximum(np.asarray(found, dtype=np.float64), _LEAST_S)


def _sum_arms(one: _Piece, other: _Piece, units: tuple[int, int]) -> tuple[_Arm, _Arm]:
    """The sums of both arms' pieces, with one cap: the same excess in seconds over either arm's median unit."""
    pieces = (one, other)
    cut = [_cut_units(piece.times, piece.sizes, unit) for piece, unit in zip(pieces, units, strict=True)]
    medians = [float(np.median(means)) for means, _, _ in cut]
    excess_s = _LONGEST_EXCESS * max(m * unit for m, unit in zip(medians, units, strict=True))
    slower = max(range(2), key=lambda place: medians[place] * units[place])
    arms = []
    for place, (piece, (means, lengths, first)) in enumerate(zip(pieces, cut, strict=True)):
        capped, influence = _cap(means, excess_s / units[place], follows=place == slower)
        arms.append(
            _Arm(
                total=piece.sum_segments(piece.times),
                typical=np.add.reduceat(capped * lengths, first),
                influence=np.add.reduceat(influence * lengths, first),
                steps=piece.sizes.astype(np.float64),
                units=influence,
                samples=piece.sum_segments(piece.samples),
                unit_samples=_cut_units(piece.samples, piece.sizes, units[place])[0],
            )
        )
    return arms[0], arms[1]


def _cut_units(times: _Array, sizes: _Counts, unit: int) -> tuple[_Array, _Array, _Counts]:
    """The mean step of every unit of consecutive pieces, its steps, and where each piece's first unit is.

    A piece's last unit may be shorter than the others.
    """
    starts = np.cumsum(sizes) - sizes
    if unit == 1:
        return times, np.ones(len(times)), starts
    counts = -(-sizes // unit)
    first = np.cumsum(counts) - counts
    heads = np.repeat(starts - first * unit, counts) + np.arange(int(counts.sum())) * unit
    lengths = np.diff(np.append(heads, len(times))).astype(np.float64)
    return np.add.reduceat(times, heads) / lengths, lengths, first


def _cap(units: _Array, excess: float, *, follows: bool = True) -> tuple[_Array, _Array]:
    """Units capped at so much above their median, and their influence on the mean of the capped ones.

    The cap moves with the median (`follows`: and the excess with it), and the mean with the cap as far as units exceed
    it. A unit's influence on a median is (1/2 or -1/2) / density there (Hampel 1974); the density comes from quantiles
    as far apart as Bofinger (1975) finds best. Where a fifth of the steps are capped, as on over-subscribed machines,
    errors would be a third too small without it.
    """
    reach = min(0.25, 0.648 * len(units) ** -0.2)
    low, middle, high = (float(q) for q in np.quantile(units, [0.5 - reach, 0.5, 0.5 + reach]))
    capped = np.minimum(units, middle + excess)
    beyond = float(np.mean(units > middle + excess))
    if beyond == 0.0:
        return capped, capped
    moves = 1.0 + _LONGEST_EXCESS if follows else 1.0
    return capped, capped + moves * beyond * ((units > middle) - 0.5) * (high - low) / (2.0 * reach)


def _share_slow(arm: _Arm) -> float:
    return 1.0 - float(arm.typical.sum() / arm.total.sum())


def _mean_of(seconds: _Array, arm: _Arm) -> float:
    return float(seconds.sum() / arm.steps.sum())


def _linearise(seconds: _Array, arm: _Arm) -> _Array:
    """What each segment adds to the deviation of ln(mean step time), times the number of segments."""
    return (seconds - _mean_of(seconds, arm) * arm.steps) / float(seconds.mean())


def _measure_spread(residuals: _Array, *, alternated: bool = True) -> tuple[float, float]:
    """The standard error of the residuals' mean, with its degrees of freedom.

    What chance alone shows of a correlation, 1 / n of its square, is taken off where arms alternated: else errors of a
    dozen cycles would be a quarter too large. Blocks have no neighbour that shares their drift: all of it counts.
    """
    count = len(residuals)
    batches = min(count, _MOST_BATCHES)
    starts = np.round(np.linspace(0, count, batches + 1)).astype(np.int64)[:-1]
    sums = np.add.reduceat(residuals, starts)
    square = batches / (batches - 1) * float(sums @ sums) / count**2
    if batches >= _FEW_CYCLES:
        square *= _inflate(sums, 1.0 / batches if alternated else 0.0)
    return math.sqrt(square), float(batches - 1)


def _inflate(values: _Array, chance: float = 0.0) -> float:
    """How much larger a mean's variance is than that of independent values: (1 + r) / (1 - r), r lag-1 correlation.

    A short series shows too little correlation, by about (1 + 3 r) / n (Kendall 1954); negative ones count as 0.
    `chance` is what of r² is put down to chance.
    """
    centred = values - values.mean()
    square = float(centred @ centred)
    if square <= 0.0:
        return 1.0
    found = float(centred[1:] @ centred[:-1]) / square
    found = max(0.0, min(_MOST_CORRELATION, found + (1.0 + 3.0 * found) / len(values)))
    correlation = found**3 / (found**2 + chance) if found > 0.0 else 0.0
    return (1.0 + correlation) / (1.0 - correlation)


def _error_of_arm(arm: _Arm) -> float:
    """That of ln(samples per second), from its single units."""
    return _error_of_units(1.0 + arm.units / arm.units.mean() - arm.unit_samples / arm.unit_samples.mean())


def _error_of_units(units: _Array) -> float:
    """The standard error of ln(mean) of successive units."""
    if len(units) < 2:
        return _UNKNOWN_ERROR
    spread = float(units.std(ddof=1) / units.mean())
    return spread * math.sqrt(_inflate(units) / len(units))


def _spread_of_block(seconds: _Array, arm: _Arm) -> tuple[float, float]:
    """The standard error of ln(mean step time) of a block, with its degrees of freedom."""
    if len(seconds) < 2:
        return _UNKNOWN_ERROR, 1.0
    residuals = _linearise(seconds, arm) - _linearise(arm.samples, arm)
    error, freedom = _measure_spread(residuals, alternated=False)
    return max(error, _error_of_arm(arm)), freedom


def _add_errors(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    """The error of a difference, with Welch's degrees of freedom (Satterthwaite 1946)."""
    (a, n), (b, m) = first, second
    square = a * a + b * b
    return math.sqrt(square), square * square / (a**4 / n + b**4 / m) if square > 0.0 else n + m
