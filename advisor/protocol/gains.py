"""How a gain reads, and how much of it is known well enough to be told: the one place that decides both.

In per cent while it is small, as a factor from 30 % on; the bound comes first. A likeliest value is rounded to the
nearest; an interval's lower end is rounded down and its upper end up, so that no bound tells more than was measured.
"""

import math
from enum import StrEnum

_FACTOR_FROM = 1.3
_FACTOR_BOUND_FROM = 1.1
_LARGEST = 1000.0
_CLEAR_WIDTH = 1.25
NOISY = 0.03
"""Launches of one script that differ by more than this are told of: smaller gains hide among them."""
_WIDEST = 4.0
"""An interval that lies on one side of no gain, and whose ends are further apart than this factor, is told by its bound
only: from 2.9x to 79x, "15x" is a number that nothing supports."""
_WIDEST_OPEN = 2.0
"""The same for an interval that holds no gain: half and double the speed are both possible."""


class End(StrEnum):
    """Which end of an interval a number is, and so which way it is rounded."""

    LOW = "low"
    HIGH = "high"


class Quality(StrEnum):
    """How much of a measured ratio may be told."""

    KNOWN = "known"
    """The likeliest value, and the interval."""
    BOUNDED = "bounded"
    """Only the end of the interval that is nearer to no gain."""
    UNKNOWN = "unknown"
    """Nothing: neither faster nor slower can be said, nor by how much at most."""


def judge_quality(low: float, high: float) -> Quality:
    """Return what may be told of a ratio whose 95 % interval has these ends."""
    is_one_sided = low > 1.0 or high < 1.0
    if low > 0.0 and high <= low * (_WIDEST if is_one_sided else _WIDEST_OPEN):
        return Quality.KNOWN
    return Quality.BOUNDED if is_one_sided else Quality.UNKNOWN


def reads_as_factor(ratio: float) -> bool:
    """Return whether a throughput ratio is told as `1.8x` rather than as `+80.0 %`."""
    return ratio >= _FACTOR_FROM


def spell_percent(ratio: float, end: End | None = None) -> str:
    """A throughput ratio as `+16.1 %`; `over 1000x` where no figure means anything.

    An interval's `end` is rounded outwards.
    """
    if ratio > _LARGEST:
        return spell_factor(ratio)
    return f"{_round((ratio - 1) * 100, 1, end):+.1f} %".replace("-", "−").replace("−0.0", "+0.0")


def spell_factor(ratio: float, digits: int = 2, end: End | None = None) -> str:
    """A throughput ratio as `1.8x`, `12x`; `over 1000x` where no figure means anything.

    An interval's `end` is rounded outwards: of a lower end of 1.85 `1.8x` is known and `1.9x` is not.
    """
    if ratio > _LARGEST:
        return f"over {_LARGEST:.0f}x"
    decimals = max(0, digits - 1 - math.floor(math.log10(ratio))) if ratio >= 0.1 else 2
    return f"{_round(ratio, decimals, end):.{decimals}f}x"


def spell_gain(ratio: float, end: End | None = None) -> str:
    """A throughput ratio in the way that suits its size: `+16.1 %` or `1.8x`."""
    return spell_factor(ratio, end=end) if reads_as_factor(ratio) else spell_percent(ratio, end)


def _round(value: float, decimals: int, end: End | None) -> float:
    if end is None:
        return round(value, decimals)
    scale, noise = 10.0**decimals, 1e-6  # of the last digit shown: 1.011 − 1 is a little less than 0.011
    return (math.floor(value * scale + noise) if end is End.LOW else math.ceil(value * scale - noise)) / scale


def spell_bound(ratio: float, low: float, high: float) -> str:
    """`at least 1.8x faster`; an interval that reaches 1 bounds nothing, and gives an empty text.

    A bound next to 1 is told in per cent beside the largest factor: `1.0x faster` would say nothing.
    """
    if low <= 1.0:
        return ""
    if reads_as_factor(ratio) and low >= _FACTOR_BOUND_FROM:
        return f"at least {spell_factor(low, _digits(low, high), End.LOW)} faster"
    return f"at least {spell_percent(low, End.LOW)}"


def spell_likely(ratio: float, low: float, high: float) -> str:
    """The likeliest value with as many digits as the interval bears out: `3.1x`, `1.34x`, `+3.5 %`.

    Where that is not known `at least 2.9x`, or `not known`.
    """
    if (worse := _spell_less(low, high)) is not None:
        return worse
    return spell_factor(ratio, _digits(low, high)) if reads_as_factor(ratio) else spell_percent(ratio)


def spell_range(ratio: float, low: float, high: float) -> str:
    """The interval, in the way that suits the likeliest value: `1.8x … 5.4x`, `+1.1 … +6.0 %`.

    Where its far end says nothing `at least 2.9x`, or `not known`.
    """
    if (worse := _spell_less(low, high)) is not None:
        return worse
    if reads_as_factor(ratio):
        digits = _digits(low, high)
        return f"{spell_factor(low, digits, End.LOW)} … {spell_factor(high, digits, End.HIGH)}"
    return f"{spell_percent(low, End.LOW).removesuffix(' %')} … {spell_percent(high, End.HIGH)}"


def describe_ratio(ratio: float, low: float, high: float, *, is_shown: bool = True) -> str:
    """Return a ratio with its 95 % interval, as far as it is known; what is sure comes first.

    `at least 1.8x faster, most likely 3.1x (95 % CI 1.8x … 5.4x)`; `most likely −0.7 % (95 % CI −3.4 … +2.1 %)`.
    Where no verdict stands behind it (one launch alone tells an interval as well) it is not `is_shown`, and bounds
    nothing.
    """
    quality, bound = judge_quality(low, high), spell_bound(ratio, low, high) if is_shown else ""
    if quality is Quality.BOUNDED and not is_shown:
        quality = Quality.UNKNOWN
    if quality is Quality.UNKNOWN:
        return "measured too roughly for a figure"
    if quality is Quality.BOUNDED:
        return f"{bound or _spell_less(low, high)}, measured too roughly to say how much {'more' if bound else 'less'}"
    likely = f"{bound}, most likely" if bound else "most likely"
    return f"{likely} {spell_likely(ratio, low, high)} (95 % CI {spell_range(ratio, low, high)})"


def _spell_less(low: float, high: float) -> str | None:
    """What is told in place of a ratio that is not known; None of one that is."""
    quality = judge_quality(low, high)
    if quality is Quality.KNOWN:
        return None
    if quality is Quality.UNKNOWN:
        return "not known"
    return f"at least {spell_gain(low, End.LOW)}" if low > 1.0 else f"at most {spell_gain(high, End.HIGH)}"


def _digits(low: float, high: float) -> int:
    """Two digits of a factor, three where the interval is narrow enough for them to mean something."""
    return 3 if low > 0 and high / low < _CLEAR_WIDTH else 2


def say_smallest_gain(smallest: float) -> str:
    """Return what a budget is good for, once the noise is known; `smallest` is a fraction of the throughput."""
    told = spell_fraction(smallest)
    return f"This budget can find gains from {told} on (80 % power); smaller ones may stay undecided."


def say_launch_noise(noise: float) -> str:
    """Return how far the baseline's own launches were apart, without a full stop; `noise` is of ln(throughput)."""
    return f"The baseline alone varied by {spell_share(noise, 1 if noise < 0.1 else 0)} from launch to launch"


def spell_fraction(gain: float) -> str:
    """A gain as a fraction, on its own: `2.1 %`, `80 %`."""
    return f"{gain * 100:.0f} %" if gain >= 0.1 else f"{gain * 100:.1f} %"


def spell_share(share: float, decimals: int = 0) -> str:
    """Return a share as people read it: `12 %`."""
    return f"{share * 100:.{decimals}f} %"


def spell_rate(samples_per_s: float) -> str:
    """Samples per second with three or four digits: `1 842`, `96.4`, `0.512`."""
    if samples_per_s >= 1000:
        return f"{samples_per_s:,.0f}".replace(",", " ")
    if samples_per_s >= 100:
        return f"{samples_per_s:.0f}"
    return f"{samples_per_s:.1f}" if samples_per_s >= 10 else f"{samples_per_s:.3g}"
