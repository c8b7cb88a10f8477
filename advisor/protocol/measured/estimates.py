"""What a trial's blocks say together: throughput with its interval, step time, exposed communication."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from advisor.protocol.measured.trials import Block

_Z95 = 1.96


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
    measured = [(b, b.summary) for b in blocks if b.summary is not None and b.summary.samples_per_s > 0]
    if not measured:
        return None
    logs = [math.log(summary.samples_per_s) for _, summary in measured]
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
