"""Statistical efficiency: how much a sample still teaches under a strategy, and goodput, throughput times that.

Two sources. A merged or larger batch is judged by the gradient noise scale of the probe; everything else, and such a
batch too where its losses can tell, by how far its loss lags behind the baseline's at equal samples. Where both speak
the lower one counts: the noise scale supposes a learning rate that follows the batch, and the losses are of the rate
as it is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor.protocol.answers.advice import Interval
from advisor.protocol.base import Value
from advisor.protocol.gains import spell_share
from advisor.protocol.kinds import Effect
from advisor.protocol.measured.results import GradientNoise
from advisor.protocol.measured.trials import Block, Trial
from advisor.tuning.history.losses import LossContrast, contrast_losses, list_blocks
from advisor.tuning.history.record import Record
from advisor.tuning.measure.student_t import t_quantile

_LEAST = 0.01
_KNOWN_WITHIN = 0.1
"""Largest standard error of an efficiency that is called known."""
_NOISE_SPREAD = 0.5
"""Standard deviation, from step to step, that ln(|G_large|² / |G_small|²) is taken to have: the ranks tell means only.
Two ranks whose gradients' cosine varies by 0.3 around 0 have 0.3; half as much again is for what is unlike that."""
_Z_90 = 1.2816
"""One-sided 90 % quantile of the normal distribution."""
_LEVEL = 0.05
"""Two-sided level of the intervals that are reported."""
_NO_DOUBT = 1_000_000
"""Degrees of freedom of an efficiency that is a bound: its error is 0 anyway."""


@dataclass(frozen=True)
class Efficiency:
    """Progress per sample over the baseline's, at most 1."""

    value: float
    error: float
    """Standard error; 0 where `value` is a bound."""
    because: str
    """A sentence: where it comes from, with its figures."""
    freedom: int = _NO_DOUBT
    """Degrees of freedom of the error."""

    @property
    def log(self) -> float:
        """ln of the value: what a score in ln(throughput) is discounted by."""
        return math.log(self.value)


def efficiency_of(record: Record, trial: Trial) -> Efficiency | None:
    """Return the efficiency of a trial's strategy from every block of it; None where nothing tells.

    Exact strategies have 1 by what they are.
    """
    return measure_efficiency(record, trial.changes, list_blocks(record, trial.changes))


def measure_efficiency(
    record: Record, changes: Mapping[str, Value], blocks: Sequence[Block]
) -> Efficiency | None:
    """Return the efficiency of a strategy, its losses taken from these blocks of it."""
    if record.is_exact(changes):
        return Efficiency(1.0, 0.0, "Its knobs do not change what is computed.")
    found = [_from_noise(record, changes)]
    contrast = contrast_losses(record, blocks)
    if contrast is not None:
        found.append(judge_progress(contrast))
    return min((e for e in found if e is not None), key=lambda e: e.value, default=None)


def judge_progress(contrast: LossContrast) -> Efficiency | None:
    """Return the efficiency that losses at equal samples show; None where they are too noisy to tell within 0.1.

    Sample-matched: E = S_ref(L) / S, the samples that the baseline needed for the loss that the strategy has after S.
    Along the baseline's straight course over one block that is 1 - d / fall, with d the strategy's loss minus the
    baseline's and fall what the baseline learned in S samples. Its error is that of the quotient (delta method).
    """
    if not contrast.learned:
        return None
    lag = contrast.difference / contrast.fall
    error = math.hypot(contrast.error, lag * contrast.fall_error) / contrast.fall
    if error > _KNOWN_WITHIN:
        return None
    value = min(1.0, max(_LEAST, 1.0 - lag))
    count = len(contrast.pairs)
    because = (
        f"A sample taught {spell_share(value)} (± {spell_share(error)}) of what it teaches the baseline: after "
        f"equally many samples the loss was {contrast.difference:+.3g} off where the baseline's fell by "
        f"{contrast.fall:.3g} ({count} {'comparison' if count == 1 else 'comparisons'})."
    )
    return Efficiency(value, error, because, contrast.freedom)


def estimate_noise_scale(noise: GradientNoise, z: float = 0.0) -> float | None:
    """Return the gradient noise scale tr(Σ) / |G|² in samples; None where the norms do not tell.

    From the unbiased estimators of McCandlish et al. (2018, arXiv 1812.06162, appendix A.1) with the squared norms at
    batches b < B: |G|² = (B |G_B|² - b |G_b|²) / (B - b), tr(Σ) = (|G_b|² - |G_B|²) / (1/b - 1/B). The scale depends
    on the norms' quotient ρ = |G_B|² / |G_b|² alone: b B (1 - ρ) / (B ρ - b). `z` > 0 gives the bound that many
    standard errors of ln ρ below the estimate.
    """
    small, large = noise.small_batch, noise.large_batch
    if not 0 < small < large or noise.small_square <= 0 or noise.large_square <= 0 or noise.steps < 1:
        return None
    quotient = noise.large_square / noise.small_square
    quotient *= math.exp(z * _NOISE_SPREAD / math.sqrt(noise.steps))
    signal = large * quotient - small
    if signal <= 0:
        return None
    return max(0.0, small * large * (1.0 - quotient) / signal)


def combine(gain: Interval | None, efficiency: Efficiency | None, effect: Effect) -> Interval | None:
    """Return the interval of the goodput ratio: throughput ratio times efficiency; None where either is missing.

    The errors of the two are independent (times and losses), so the half widths in ln add up as squares; a strategy
    never learns more from a sample than the baseline. An exact strategy's goodput is its throughput.
    """
    if gain is None or efficiency is None:
        return None
    if effect is Effect.EXACT:
        return gain
    centre = math.log(gain.ratio) + efficiency.log
    doubt = t_quantile(1.0 - _LEVEL / 2.0, efficiency.freedom) * efficiency.error / efficiency.value
    low = centre - math.hypot(math.log(gain.ratio / gain.low), doubt)
    high = centre + math.hypot(math.log(gain.high / gain.ratio), doubt)
    return gain.model_copy(
        update={"ratio": math.exp(centre), "low": math.exp(low), "high": min(gain.high, math.exp(high))}
    )


def _from_noise(record: Record, changes: Mapping[str, Value]) -> Efficiency | None:
    """Of a merged or larger batch: E = (φ + M₀) / (φ + M), the noise scale φ at its lower 90 % bound.

    After AdaScale and Pollux.
    """
    merged = int(changes.get("batch_size_multiple", 1))
    if changes.get("gradient_merge"):
        merged *= int(changes.get("gradient_merge_k_steps", 1))
    noise = next(
        (
            b.result.calibration.noise
            for b in record.baseline_blocks
            if b.result and b.result.calibration and b.result.calibration.noise
        ),
        None,
    )
    scale = estimate_noise_scale(noise, _Z_90) if noise is not None else None
    if noise is None or scale is None or merged < 2:
        return None
    batch = noise.large_batch
    value = max(_LEAST, (scale + batch) / (scale + merged * batch))
    because = (
        f"A sample of the {merged} times larger batch ({merged * batch:g} for {batch:g}) teaches at least "
        f"{spell_share(value)} of what it teaches now: the gradient noise scale is at least {scale:.3g} samples (90 % "
        f"bound over {noise.steps} steps). That supposes a learning rate raised {merged * value:.2g} times with the "
        "batch."
    )
    return Efficiency(value, 0.0, because)
