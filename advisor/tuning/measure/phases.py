"""The account of a step in measured blocks: the mean over blocks, shares of it, and the rank that is late."""

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean, median

from advisor.protocol.gains import spell_share
from advisor.protocol.measured.results import PHASE_NAMES, BlockResult, LateRank, Phases
from advisor.protocol.measured.trials import Block

NEGLIGIBLE = 0.02
"""A phase with a smaller share of the step cannot bring 2 % (Amdahl: 1 / (1 - share) - 1)."""
_SAME_RANK = 0.75
"""Share of the blocks in which one and the same rank has to be late: noise hits one after the other."""

_MOST_UNMODELLED = 0.1
"""Share of a step in collectives that the cost model does not know, from which on it says nothing of other clusters."""


def pool_phases(blocks: Sequence[Block], pool: Callable[[Sequence[float]], float] = fmean) -> Phases:
    """Return the mean account over the blocks that have one, in seconds per step: always of one rank.

    Another `pool` than the mean is taken of each phase by itself.

    That is the late rank where one is late throughout, else each block's usual one. Blocks that could not tell
    communication apart are left out where others could.
    """
    measured = [b.result for b in blocks if b.result and b.result.phases.total_s() > 0]
    known = [result for result in measured if result.phases.exposed_comm_s is not None]
    late = find_late(blocks)
    accounts = [_account_of(result, late) for result in known or measured]
    if not accounts:
        return Phases()
    pooled = {
        name: pool([getattr(phases, name) for phases in accounts])
        for name in PHASE_NAMES
        if known or name != "exposed_comm_s"
    }
    return Phases(**pooled)


def _account_of(result: BlockResult, late: LateRank | None) -> Phases:
    if late is None or late.rank >= len(result.per_rank_phases):
        return result.phases
    return result.per_rank_phases[late.rank]


def find_late(blocks: Sequence[Block]) -> LateRank | None:
    """Return the rank for which the others wait in three quarters of the blocks, with what it does in most of them.

    On a machine whose ranks share its cores now one is late and now the other: then none is named.
    """
    judged = [b.result for b in blocks if b.result and len(b.result.per_rank_work_s) > 1]
    found = [result.late for result in judged if result.late is not None]
    if not found:
        return None
    rank, times = Counter(late.rank for late in found).most_common(1)[0]
    if times < _SAME_RANK * len(judged):
        return None
    same = [late for late in found if late.rank == rank]
    part = Counter(late.part for late in same).most_common(1)[0][0]
    return LateRank(
        rank=rank,
        waited_s=median(late.waited_s for late in same),
        part=part,
        excess_s=median(late.excess_s for late in same if late.part == part),
        saves_beside=median(late.saves_beside for late in same),
    )


def communication_s(phases: Phases) -> float | None:
    """Return what the wire takes of a step, DDP's and other collectives'; None where it was not measured."""
    if phases.exposed_comm_s is None:
        return None
    return phases.exposed_comm_s + phases.buffers_s + phases.collectives_s


def exposed_share(phases: Phases) -> float | None:
    """Return the share of the step that the reduction of gradients is waited for; None where it was not measured.

    Ranks that wait for each other in it are counted: fewer or later reductions change that as well.
    """
    total = phases.total_s()
    if phases.exposed_comm_s is None or total <= 0:
        return None
    return (phases.exposed_comm_s + phases.wait_s) / total


def measure_scaling(blocks: Sequence[Block]) -> float | None:
    """Return scaling efficiency: the step without communication and waiting over the step.

    None where that is unknown, and where one rank is late: its delay is no price of scaling.
    """
    phases = pool_phases(blocks)
    total, wire_s = phases.total_s(), communication_s(phases)
    if wire_s is None or total <= 0 or find_late(blocks) is not None:
        return None
    return 1.0 - (wire_s + phases.wait_s) / total


def explain_unclear(blocks: Sequence[Block]) -> str | None:
    """Return why nothing can be concluded from this account for another cluster; None where something can."""
    phases, late = pool_phases(blocks), find_late(blocks)
    total = phases.total_s()
    if total <= 0:
        return None
    if phases.exposed_comm_s is None:
        return "what of a step is communication could not be measured."
    if late is not None:
        return f"rank {late.rank} is late in every step; see to that first, then measure again."
    if phases.buffers_s > _MOST_UNMODELLED * total:
        return (
            f"{spell_share(phases.buffers_s / total)} of a step is the broadcast of the model's buffers, and how that "
            "grows with the cluster is not known: do without it (broadcast_buffers=False), then measure again."
        )
    if phases.collectives_s > _MOST_UNMODELLED * total:
        return (
            f"{spell_share(phases.collectives_s / total)} of a step are collectives beside the reduction of gradients, "
            "and how they grow with the cluster is not known."
        )
    return None


def computing_s(phases: Phases) -> float:
    """Return forward, backward and optimizer."""
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
