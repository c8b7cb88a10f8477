"""Whether a strategy fits into the devices' memory, from the baseline's peak and what its knobs add."""

from collections.abc import Mapping

from advisor.protocol.base import Value
from advisor.protocol.knobs.knob import KnobContext
from advisor.protocol.nodes.cluster import DeviceKind

_GIB = 2**30
_ROOM = 0.97
"""Share of a device's memory that a process can have: the driver and NCCL keep the rest."""
_FRACTION = "FLAGS_fraction_of_gpu_memory_to_use"
"""The knob that limits a process's share of a device."""


def device_memory_bytes(context: KnobContext) -> int | None:
    """Return the memory of the smallest device; None where it is not known (or the model computes on CPUs)."""
    sizes = [device.memory_bytes for node in context.cluster.nodes for device in node.devices]
    if context.facts.device is not DeviceKind.CUDA or not sizes:
        return None
    return min(sizes)


def added_bytes(context: KnobContext, values: Mapping[str, Value]) -> dict[str, float]:
    """Return the bytes that each changed knob adds to a rank's peak; buffers of the exchange beside the gradients."""
    facts, base = context.facts, context.baseline
    changed = {name for name, value in values.items() if value != base.get(name)}
    added: dict[str, float] = {}
    if "fp16_allreduce" in changed and values["fp16_allreduce"] and not facts.sharding:
        added["fp16_allreduce"] = facts.gradient_bytes / 2
    if "dgc" in changed and values["dgc"]:
        # The error fed back is as large as the gradients (arXiv 1905.13727), and a bucket is rebuilt beside them.
        added["dgc"] = float(facts.gradient_bytes)
    if "use_hierarchical_allreduce" in changed and values["use_hierarchical_allreduce"]:
        added["use_hierarchical_allreduce"] = facts.gradient_bytes / max(1, facts.local_world_size)
    if "sharding_stage" in changed and facts.sharding and values["sharding_stage"] == 2:
        added["sharding_stage"] = float(facts.gradient_bytes)
    return added


def misfit_sentence(context: KnobContext, peak_bytes: int, values: Mapping[str, Value]) -> str | None:
    """Return why a strategy cannot fit, with figures, or None.

    Only what is certain rules a strategy out: 16-bit arithmetic and other savings are not counted as room.
    """
    room = device_memory_bytes(context)
    # How much of a peak is kept for the backward, and would be kept in parts, is not known.
    is_split = int(values["micro_batches"]) > int(context.baseline["micro_batches"])
    if room is None or peak_bytes <= 0 or is_split:
        return None
    added = added_bytes(context, values)
    needed = peak_bytes + sum(added.values())
    share = float(values[_FRACTION]) if values[_FRACTION] != context.baseline[_FRACTION] else _ROOM
    limit = min(share, _ROOM) * room
    if needed <= limit:
        return None
    what = f" and {', '.join(added)} {sum(added.values()) / _GIB:.1f} GiB more" if added else ""
    return (
        f"The baseline's peak is {peak_bytes / _GIB:.1f} GiB{what}, which is more than the {limit / _GIB:.1f} GiB that "
        f"a process may have of a device's {room / _GIB:.1f} GiB here."
    )
