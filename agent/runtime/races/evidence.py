"""What can be shown of the strategy in force on this rank: its knobs, its buckets and its memory."""

from __future__ import annotations

from typing import Any, Dict

from ..facts import count_gradient_bytes
from ..observe.memory import read_peak_bytes
from .parts import RankParts


def read_peak(parts: RankParts) -> int:
    """Bytes since the peak was set back, without the buckets of the reducers of strategies that are not in force."""
    reduction = parts.levers.reduction
    spare = sum(reduction.count_spares(ddp) * count_gradient_bytes(ddp) for ddp in parts.list_replicas())
    return max(0, read_peak_bytes(parts.device) - spare)


def collect_evidence(parts: RankParts, peak_bytes: int) -> Dict[str, Any]:
    """Of the strategy in force, as this rank's part of a result has it."""
    replicas = parts.list_replicas()
    evidence = parts.levers.prove(parts.backend, replicas)
    return {
        "peak_memory_bytes": peak_bytes,
        "bucket_bytes": parts.levers.reduction.list_bucket_bytes(replicas),
        "consumed": evidence.consumed,
        "not_consumed": evidence.not_consumed,
        "no_effect": evidence.no_effect,
    }
