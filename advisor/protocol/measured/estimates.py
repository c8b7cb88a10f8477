"""What a trial's blocks say together: throughput with its interval, step time, exposed communication."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Block

_Z95 = 1.96


def mean_step_s(result: BlockResult) -> float:
    """Return the mean step time in seconds, as the user's clock shows it; 0 without a timed step."""
    return fmean(result.step_time_s) if result.step_time_s else 0.0


def rate_of(block: Block) -> float:
    """Return a block's samples per second on the one basis of all screens, the user's clock; 0 where it has none."""
    if block.result is not None and (step_s := mean_step_s(block.result)) > 0.0:
        return block.result.samples_per_step / step_s
    return block.summary.samples_per_s if block.summary else 0.0


@dataclass(frozen=True)
class Estimate:
    """A trial's blocks in a few numbers."""

    samples_per_s: float
    """Geometric mean over blocks."""
    half_width: float
    """Half of the 95 % interval of that mean, in samples per second."""
    step_time_s: float
    """Median over blocks of their median step time."""
    exposed_comm_s: float | None
    """Median over blocks; None where it was not measured."""
    utilisation: float | None
    """Mean over blocks, 0 to 1; None before telemetry arrived."""
    blocks: int


def estimate_blocks(blocks: Sequence[Block]) -> Estimate | None:
    """Summarise finished blocks for display; None when there is none.

    The interval is 1.96 standard errors of the mean of ln(throughput). With three blocks or more the spread
    between blocks counts as well, because blocks minutes apart differ by more than their own noise. This is a
    picture of one trial's noise, not the verdict: that rests on paired rounds (`Advice.gain`).
    """
    # A block that stands for another one of the same plan holds no times of its own.
    rated = [(b, b.summary, rate_of(b)) for b in blocks if b.summary is not None]
    measured = [(block, summary) for block, summary, rate in rated if rate > 0]
    if not measured:
        return None
    logs = [math.log(rate) for _, _, rate in rated if rate > 0]
    error = math.sqrt(sum(summary.log_step_time_se**2 for _, summary in measured)) / len(measured)
    if len(logs) >= 3:
        error = max(error, stdev(logs) / math.sqrt(len(logs)))
    throughput = math.exp(fmean(logs))
    exposed = [
        block.result.phases.exposed_comm_s
        for block, _ in measured
        if block.result is not None and block.result.phases.exposed_comm_s is not None
    ]
    shares = [block.utilisation for block, _ in measured if block.utilisation is not None]
    return Estimate(
        samples_per_s=throughput,
        half_width=throughput * math.expm1(_Z95 * error),
        step_time_s=median(summary.median_step_time_s for _, summary in measured),
        exposed_comm_s=median(exposed) if exposed else None,
        utilisation=fmean(shares) if shares else None,
        blocks=len(measured),
    )
