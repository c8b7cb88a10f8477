"""Which nodes hold the others up, and why: from whom the ranks wait for, and what the devices say of their clocks."""

from collections.abc import Sequence
from statistics import fmean, median

from advisor.protocol.answers.late_rank import OFTEN, describe_late
from advisor.protocol.gains import spell_share
from advisor.protocol.measured.telemetry import DeviceTelemetry, FlagKind, NodeFlag
from advisor.protocol.measured.trials import Block, Session
from advisor.protocol.nodes.cluster import Cluster
from advisor.tuning.measure.phases import find_late

_HARMFUL = ("HwThermalSlowdown", "HwPowerBrakeSlowdown", "SwThermalSlowdown", "Reliability", "HwSlowdown")
"""Reasons for reduced clocks that a healthy device under full load does not have (a power cap is usual there); the last
comes along with the others."""
_SLOW_CLOCK = 0.9
"""Below this share of the other devices' clock a device is slow."""
_WORKING = 0.5
"""Busy share from which on a device's clock tells something: an idle one clocks down."""
_LONG_GAP_S = 5.0


def flag_nodes(
    blocks: Sequence[Block], sessions: Sequence[Session], local_world_size: int, cluster: Cluster
) -> tuple[NodeFlag, ...]:
    """Return what speaks against the nodes that measured `blocks`, the most telling first.

    `sessions` name the nodes of the blocks; `local_world_size` is the number of ranks a node; `cluster` tells which
    devices are of one kind.
    """
    straggler = find_straggler(blocks, sessions, local_world_size)
    clocks = _flag_clocks(blocks, _name_kinds(sessions, cluster))
    return (*clocks, *([straggler] if straggler else []), *_flag_gaps(blocks))


def flag_devices(
    blocks: Sequence[Block], sessions: Sequence[Session], cluster: Cluster
) -> tuple[NodeFlag, ...]:
    """Return what the devices' own figures say against the nodes: clocks, and times without an answer."""
    return (*_flag_clocks(blocks, _name_kinds(sessions, cluster)), *_flag_gaps(blocks))


def find_straggler(
    blocks: Sequence[Block], sessions: Sequence[Session], local_world_size: int
) -> NodeFlag | None:
    """Return the rank that the others wait for (`find_late`), with its node."""
    agents = {session.id: session.agents for session in sessions}
    ranked = [
        block
        for block in blocks
        if block.result
        and len(block.result.per_rank_work_s) == len(agents.get(block.session_id, ())) * local_world_size
    ]
    late = find_late(ranked)
    if late is None:
        return None
    last = next(b for b in reversed(ranked) if b.result and b.result.late and b.result.late.rank == late.rank)
    agent = agents[last.session_id][late.rank // local_world_size]
    step_s = fmean(block.result.phases.total_s() for block in ranked if block.result)
    return NodeFlag(
        agent=agent,
        kind=FlagKind.STRAGGLER,
        sentence=describe_late(late, step_s, f" on {agent}"),
        rank=late.rank,
    )


def _flag_clocks(blocks: Sequence[Block], kinds: dict[tuple[str, int], str]) -> list[NodeFlag]:
    seen: dict[tuple[str, int], list[DeviceTelemetry]] = {}
    for node in (node for block in blocks for node in block.telemetry):
        for device in node.devices:
            seen.setdefault((node.agent, device.index), []).append(device)
    clocks = {place: _clock_at_work(devices) for place, devices in seen.items()}
    flags: dict[str, NodeFlag] = {}
    for place, devices in seen.items():
        agent, index = place
        reasons = {
            reason: fmean(device.throttled.get(reason, 0.0) for device in devices) for reason in _HARMFUL
        }
        reason = max(reasons, key=lambda name: reasons[name])
        clock = clocks[place]
        peers = [
            other
            for where, other in clocks.items()
            if where != place and other is not None and kinds.get(where) == kinds.get(place)
        ]
        usual = median(peers) if peers else None
        comparison = f", {usual:.0f} MHz on the other GPUs" if usual else ""
        speed = f" ({clock:.0f} MHz{comparison})" if clock else ""
        if reasons[reason] >= OFTEN:
            flags.setdefault(
                agent,
                NodeFlag(
                    agent=agent,
                    kind=FlagKind.THROTTLED,
                    sentence=(
                        f"GPU {index} of {agent} ran with reduced clocks in {spell_share(reasons[reason])} "
                        f"of the samples: {reason}{speed}. Look at its cooling and its power supply."
                    ),
                ),
            )
        elif clock is not None and usual and clock < _SLOW_CLOCK * usual:
            flags.setdefault(
                agent,
                NodeFlag(
                    agent=agent,
                    kind=FlagKind.SLOW_CLOCK,
                    sentence=(
                        f"GPU {index} of {agent} works with slower clocks than its peers{speed}. Compare its power "
                        "limit and its application clocks with theirs: nvidia-smi -q -d CLOCK,POWER."
                    ),
                ),
            )
    return list(flags.values())


def _clock_at_work(devices: Sequence[DeviceTelemetry]) -> float | None:
    clocks = [d.sm_clock_mhz for d in devices if d.sm_clock_mhz is not None and d.busy.mean >= _WORKING]
    return median(clocks) if clocks else None


def _flag_gaps(blocks: Sequence[Block]) -> list[NodeFlag]:
    gaps: dict[str, float] = {}
    for node in (node for block in blocks for node in block.telemetry):
        gaps[node.agent] = max(node.gap_s, gaps.get(node.agent, 0.0))
    return [
        NodeFlag(
            agent=agent,
            kind=FlagKind.UNOBSERVED,
            sentence=(
                f"NVML of {agent} did not answer for {gap_s:.0f} s, so that nothing is known of its GPUs in that time. "
                "Look at dmesg and nvidia-smi there."
            ),
        )
        for agent, gap_s in gaps.items()
        if gap_s >= _LONG_GAP_S
    ]


def _name_kinds(sessions: Sequence[Session], cluster: Cluster) -> dict[tuple[str, int], str]:
    names = sessions[-1].agents if sessions else ()
    return {
        (agent, device.index): device.name
        for agent, node in zip(names, cluster.nodes, strict=False)
        for device in node.devices
    }
