"""Where the time of a step goes in measured blocks: medians of phases, shares, skews between ranks."""

from collections.abc import Sequence
from statistics import fmean, median

from advisor.protocol.measured.trials import Block, Phases

NEGLIGIBLE = 0.02
"""A phase with a smaller share of the step cannot bring 2 % (Amdahl: 1 / (1 - share) - 1)."""


def median_phases(blocks: Sequence[Block]) -> Phases:
    """Return the median of each phase over the blocks that measured phases, in seconds per step."""
    measured = [b.result.phases for b in blocks if b.result and b.result.phases.total_s() > 0]
    if not measured:
        return Phases()
    exposed = [p.exposed_comm_s for p in measured if p.exposed_comm_s is not None]
    return Phases(
        data_wait_s=median(p.data_wait_s for p in measured),
        forward_s=median(p.forward_s for p in measured),
        backward_s=median(p.backward_s for p in measured),
        exposed_comm_s=median(exposed) if exposed else None,
        optimizer_s=median(p.optimizer_s for p in measured),
        other_s=median(p.other_s for p in measured),
    )


def exposed_share(phases: Phases) -> float | None:
    """Return exposed communication's share of the step; None where it was not measured."""
    total = phases.total_s()
    if phases.exposed_comm_s is None or total <= 0:
        return None
    return phases.exposed_comm_s / total


def measure_scaling(phases: Phases) -> float | None:
    """Return scaling efficiency: the step without exposed communication over the step; None where it is unknown."""
    share = exposed_share(phases)
    return None if share is None else 1.0 - share


def measure_skew(blocks: Sequence[Block]) -> float:
    """Return the slowest rank's median step time over the median rank's, minus 1; averaged over blocks."""
    skews = []
    for block in blocks:
        ranks = block.result.per_rank_step_time_s if block.result else ()
        if len(ranks) > 1 and median(ranks) > 0:
            skews.append(max(ranks) / median(ranks) - 1.0)
    return fmean(skews) if skews else 0.0


def measure_compute_skew(blocks: Sequence[Block]) -> float:
    """Return how much more of the step the slowest rank computes than the median rank, as a share of the step.

    Synchronised ranks all take the same step time, so a straggler shows in what it computes, not in its steps.
    """
    skews = []
    for block in blocks:
        if (
            block.result
            and block.result.phases.total_s() > 0
            and block.result.worst_rank_phases.total_s() > 0
        ):
            usual, worst = block.result.phases, block.result.worst_rank_phases
            skews.append((computing_s(worst) - computing_s(usual)) / usual.total_s())
    return fmean(skews) if skews else 0.0


def computing_s(phases: Phases) -> float:
    return phases.forward_s + phases.backward_s + phases.optimizer_s


def measure_busy(blocks: Sequence[Block]) -> float | None:
    """Return the share of time in which the devices ran any kernel, 0 to 1; None on nodes without devices."""
    shares = [
        device.busy.mean
        for block in blocks
        for node in block.telemetry
        if node.gap_s == 0
        for device in node.devices
    ]
    return max(0.0, min(1.0, fmean(shares))) if shares else None
