"""Which nodes hold the others up, and why: from what each rank works, and from what the devices say of their clocks."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median

from advisor.protocol.cluster import Cluster
from advisor.protocol.telemetry import DeviceTelemetry, FlagKind, NodeFlag
from advisor.protocol.trials import Block, Session

_HARMFUL = ("HwThermalSlowdown", "HwPowerBrakeSlowdown", "SwThermalSlowdown", "Reliability", "HwSlowdown")
"""Reasons for reduced clocks that a healthy device under full load does not have (a power cap is usual there); the last
comes along with the others."""
_OFTEN = 0.2
_SLOW_CLOCK = 0.9
"""Below this share of the other devices' clock a device is slow."""
_WORKING = 0.5
"""Busy share from which on a device's clock tells something: an idle one clocks down."""
_LAGGING = 0.10
"""Share of the step that a rank works longer than the others."""
_SAME_RANK = 0.6
"""Share of the blocks in which it has to be the same rank: noise hits one after the other."""
_LONG_GAP_S = 5.0


def flag_nodes(
    blocks: Sequence[Block], sessions: Sequence[Session], local_world_size: int, cluster: Cluster
) -> tuple[NodeFlag, ...]:
    """Return what speaks against the nodes that measured `blocks`, the most telling first.

    `sessions` name the nodes of the blocks; `local_world_size` is the number of ranks a node; `cluster` tells which
    devices are of one kind.
    """
    agents = {session.id: session.agents for session in sessions}
    straggler = _find_straggler(blocks, agents, local_world_size)
    flags = [*_flag_clocks(blocks, _name_kinds(sessions, cluster)), *([straggler] if straggler else [])]
    return (*flags, *_flag_gaps(blocks))


def _find_straggler(
    blocks: Sequence[Block], agents: dict[str, tuple[str, ...]], local_world_size: int
) -> NodeFlag | None:
    slowest: list[tuple[int, str]] = []
    extra_s: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for block in blocks:
        works = block.result.per_rank_work_s if block.result else ()
        names = agents.get(block.session_id, ())
        if block.result is None or len(works) < 2 or len(works) != len(names) * local_world_size:
            continue
        rank = max(range(len(works)), key=lambda index: works[index])
        others_s = median(work for index, work in enumerate(works) if index != rank)
        place = (rank, names[rank // local_world_size])
        slowest.append(place)
        extra_s.setdefault(place, []).append((works[rank] - others_s, block.result.phases.total_s()))
    if not slowest:
        return None
    (rank, agent), times = Counter(slowest).most_common(1)[0]
    more_s = median(extra for extra, _ in extra_s[rank, agent])
    step_s = median(step for _, step in extra_s[rank, agent])
    if times / len(slowest) < _SAME_RANK or step_s <= 0 or more_s / step_s < _LAGGING:
        return None
    return NodeFlag(
        agent=agent,
        kind=FlagKind.STRAGGLER,
        sentence=(
            f"Rank {rank} on {agent} works {more_s * 1e3:.1f} ms longer in each step of {step_s * 1e3:.1f} ms than the "
            "others, which wait for it. Look for another load, a slower device or throttling there; no strategy mends "
            "that."
        ),
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
        if reasons[reason] >= _OFTEN:
            flags.setdefault(
                agent,
                NodeFlag(
                    agent=agent,
                    kind=FlagKind.THROTTLED,
                    sentence=(
                        f"GPU {index} of {agent} ran with reduced clocks in {reasons[reason]:.0%} of the samples: "
                        f"{reason}{speed}. Look at its cooling and its power supply."
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
