"""Which nodes hold the others up, and why: from what each rank works, and from what the devices say of their clocks."""

from collections.abc import Sequence
from statistics import fmean, median

from advisor.protocol.answers.gains import spell_share
from advisor.protocol.measured.telemetry import DeviceTelemetry, FlagKind, NodeFlag
from advisor.protocol.measured.trials import Block, Session
from advisor.protocol.nodes.cluster import Cluster

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
_SAME_RANK = 0.75
"""Share of the blocks in which one and the same rank has to lag so far: noise hits one after the other."""
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
    """Return the rank that works longer than the others by a tenth of the step in three quarters of the blocks.

    Ranks that wait for each other take equally long steps, so each one's own work is compared (`per_rank_work_s`).
    On a machine whose ranks share its cores now one lags and now the other: that names nobody.
    """
    agents = {session.id: session.agents for session in sessions}
    judged = 0
    extra_s: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for block in blocks:
        works = block.result.per_rank_work_s if block.result else ()
        names = agents.get(block.session_id, ())
        if block.result is None or len(works) < 2 or len(works) != len(names) * local_world_size:
            continue
        judged += 1
        rank = max(range(len(works)), key=lambda index: works[index])
        more_s = works[rank] - median(work for index, work in enumerate(works) if index != rank)
        step_s = block.result.phases.total_s()
        if step_s > 0 and more_s >= _LAGGING * step_s:
            extra_s.setdefault((rank, names[rank // local_world_size]), []).append((more_s, step_s))
    if not extra_s:
        return None
    (rank, agent), seen = max(extra_s.items(), key=lambda place: len(place[1]))
    if len(seen) < _SAME_RANK * judged:
        return None
    more_s, step_s = median(more for more, _ in seen), median(step for _, step in seen)
    return NodeFlag(
        agent=agent,
        kind=FlagKind.STRAGGLER,
        sentence=(
            f"Rank {rank} on {agent} works {more_s * 1e3:.1f} ms longer in each step of {step_s * 1e3:.1f} ms "
            "than the others, which wait for it. Look for another load, a slower device or throttling there; "
            "tuning cannot fix this."
        ),
        rank=rank,
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
