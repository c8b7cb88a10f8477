"""How a gain reads: in per cent while it is small, as a factor from 30 % on; the bound comes first."""

_FACTOR_FROM = 1.3
_LARGEST = 1000.0
_CLEAR_WIDTH = 1.25
NOISY = 0.03
"""Launches of one script that differ by more than this are told of: smaller gains hide among them."""


def reads_as_factor(ratio: float) -> bool:
    """Return whether a throughput ratio is told as `1.8x` rather than as `+80.0 %`."""
    return ratio >= _FACTOR_FROM


def spell_percent(ratio: float) -> str:
    """A throughput ratio as `+16.1 %`; `over 1000x` where no figure means anything."""
    if ratio > _LARGEST:
        return spell_factor(ratio)
    return f"{(ratio - 1) * 100:+.1f} %".replace("-", "−").replace("−0.0", "+0.0")


def spell_factor(ratio: float, digits: int = 2) -> str:
    """A throughput ratio as `1.8x`, `12x`; `over 1000x` where no figure means anything."""
    if ratio > _LARGEST:
        return f"over {_LARGEST:.0f}x"
    if ratio >= 10 ** (digits - 1):
        return f"{ratio:.0f}x"
    return f"{ratio:#.{digits}g}x" if ratio >= 0.1 else f"{ratio:.2f}x"


def spell_gain(ratio: float) -> str:
    """A throughput ratio in the way that suits its size: `+16.1 %` or `1.8x`."""
    return spell_factor(ratio) if reads_as_factor(ratio) else spell_percent(ratio)


def spell_bound(ratio: float, low: float, high: float) -> str:
    """`at least 1.8x faster`; an interval that reaches 1 bounds nothing, and gives an empty text."""
    if low <= 1.0:
        return ""
    if reads_as_factor(ratio):
        return f"at least {spell_factor(low, _digits(low, high))} faster"
    return f"at least {spell_percent(low)}"


def spell_likely(ratio: float, low: float, high: float) -> str:
    """The likeliest value with as many digits as the interval bears out: `3.1x`, `1.34x`, `+3.5 %`."""
    return spell_factor(ratio, _digits(low, high)) if reads_as_factor(ratio) else spell_percent(ratio)


def spell_range(ratio: float, low: float, high: float) -> str:
    """The interval, in the way that suits the likeliest value: `1.8x … 5.4x`, `+1.1 … +6.0 %`."""
    if reads_as_factor(ratio):
        digits = _digits(low, high)
        return f"{spell_factor(low, digits)} … {spell_factor(high, digits)}"
    return f"{spell_percent(low).removesuffix(' %')} … {spell_percent(high)}"


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
