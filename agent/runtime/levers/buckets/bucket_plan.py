"""Which bucket sizes a strategy asks for, and which ones a DistributedDataParallel model has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Tuple

import torch.distributed as dist

from ...private_torch import BUCKET_CONFIG, FIRST_BUCKET_BYTES, GET_LOG, USUAL_FIRST_BUCKET_BYTES
from ..lever import read_count, read_switch

MIB = 1024 * 1024
LAYERS = "fuse_grad_size_in_TFLOPS"
"""Fleet's name for the most layers of a bucket."""
LISTED = "bucket_cap_mb_list"
"""DDP's own name for one cap for each bucket, `1+4+12.5`; torch 2.12 and later."""
BATCHED = "batched_grad_copy"
"""DDP's own name for one copy of all gradients of a bucket; torch 2.12 and later."""
KNOBS = ("fuse_all_reduce_ops", "fuse_grad_size_in_MB", "last_comm_group_size_MB", LAYERS, LISTED, BATCHED)
LIVE_ONLY = ("last_comm_group_size_MB", LAYERS, LISTED, BATCHED)
"""Those that are not set at launch."""


@dataclass(frozen=True)
class BucketPlan:
    """DDP closes a bucket once it holds at least this many bytes."""

    first_bytes: int
    """For the bucket that DDP fills first. Its gradients are ready and reduced first (Fleet's "last group");
    where DDP searches for unused parameters, buckets stay in the order of definition and it is reduced last."""
    cap_bytes: int
    listed_bytes: Tuple[int, ...] = ()
    """Caps bucket by bucket as DDP fills them, the last one for all further buckets; where there are any, the two
    others say nothing."""
    most_layers: int = 0
    """Layers that may share a bucket; 0 sets no limit."""
    copies_batched: bool = False
    """Whether the gradients of a bucket are copied into it together, once the last of them is there."""
    searches_unused: bool = False
    """Whether DDP searches the graph of every step for parameters that get no gradient."""

    @property
    def is_fused(self) -> bool:
        return self.cap_bytes > 1


def observe_plan(ddp: Any) -> BucketPlan:
    """The plan in force, from the fields that DDP itself bucketed by.

    torch >= 2.3 lets the first bucket equal the cap unless `bucket_cap_mb` was None; before, it was 1 MiB always.
    """
    cap = int(ddp.bucket_bytes_cap)
    config = BUCKET_CONFIG.find(ddp)
    searches = bool(ddp.find_unused_parameters)
    if config is not None:
        listed = tuple(config.per_bucket_bytes_caps)
        batched = bool(getattr(ddp, BATCHED, False))
        return BucketPlan(int(config.first_bucket_bytes_cap), cap, listed, 0, batched, searches)
    first = _read_first_bytes() if getattr(ddp, "bucket_bytes_cap_default", True) else cap
    return BucketPlan(first, cap, searches_unused=searches)


def plan_for_argument(bucket_cap_mb: Any) -> BucketPlan:
    """The plan that DDP makes of its `bucket_cap_mb`: only None (not 25) gives the small first bucket."""
    if bucket_cap_mb is None:
        return BucketPlan(_read_first_bytes(), 25 * MIB)
    return BucketPlan(int(bucket_cap_mb * MIB), int(bucket_cap_mb * MIB))


def limit_first_bucket(cap_bytes: int) -> None:
    """torch.compile refuses a DDP model whose other buckets are smaller than torch's own first one, 1 MiB."""
    FIRST_BUCKET_BYTES.set(dist, min(_read_first_bytes(), cap_bytes))


def _read_first_bytes() -> int:
    return int(FIRST_BUCKET_BYTES.find(dist, USUAL_FIRST_BUCKET_BYTES))


def resolve_plan(baseline: BucketPlan, values: Mapping[str, Any]) -> Tuple[BucketPlan, Dict[str, str]]:
    """The plan for baseline + values, and the knobs that cannot be taken with the reason."""
    rejected: Dict[str, str] = {}
    cap, first, fused, layers = baseline.cap_bytes, baseline.first_bytes, baseline.is_fused, 0
    batched = baseline.copies_batched
    listed: Tuple[int, ...] = ()
    chosen = set()
    for knob in KNOBS:
        if knob not in values:
            continue
        try:
            if knob == "fuse_all_reduce_ops":
                fused = read_switch(values[knob])
            elif knob == "fuse_grad_size_in_MB":
                cap = _read_mebibytes(values[knob])
            elif knob == LAYERS:
                layers = read_count(values[knob], 1)
            elif knob == LISTED:
                listed = read_list(values[knob])
            elif knob == BATCHED:
                batched = read_switch(values[knob])
            else:
                first = _read_mebibytes(values[knob])
            chosen.add(knob)
        except ValueError as error:
            rejected[knob] = f"{knob} was not set: {error}."
    if not chosen:
        return baseline, rejected
    if not fused:
        for knob in chosen - {"fuse_all_reduce_ops", BATCHED}:
            rejected[knob] = (
                f"{knob} has no meaning while fuse_all_reduce_ops is off: every parameter is alone."
            )
        return replace(baseline, first_bytes=1, cap_bytes=1, copies_batched=batched), rejected
    if listed:
        for knob in chosen - {"fuse_all_reduce_ops", LISTED, BATCHED}:
            rejected[knob] = f"{knob} has no meaning beside {LISTED}: each bucket has a size of its own."
        own = BucketPlan(listed[0], max(listed), listed, 0, batched, baseline.searches_unused)
        return own, rejected
    if chosen <= {"fuse_all_reduce_ops", LAYERS, LISTED, BATCHED}:
        return replace(baseline, most_layers=layers, copies_batched=batched), rejected
    return BucketPlan(min(first, cap), cap, (), layers, batched, baseline.searches_unused), rejected


def read_buckets(ddp: Any) -> Tuple[List[int], bool]:
    """Bytes of the buckets in force from DDP's own log, and whether they are final (rebuilt in gradient order).

    With find_unused_parameters DDP never rebuilds, so the initial buckets are final.
    """
    data = GET_LOG.of(ddp)()
    if data.get("has_rebuilt_buckets"):
        return _read_sizes(data.get("rebuilt_bucket_sizes", "")), True
    never_rebuilds = bool(ddp.find_unused_parameters) and not ddp.static_graph
    return _read_sizes(data.get("bucket_sizes", "")), never_rebuilds


def holds_list(buckets: List[int], caps: Tuple[int, ...]) -> bool:
    """Whether every bucket but the last holds the cap of its place; without a list, whatever they hold."""
    return not caps or all(size >= caps[min(place, len(caps) - 1)] for place, size in enumerate(buckets[:-1]))


def describe_buckets(buckets: List[int]) -> str:
    sizes = ", ".join(f"{size / MIB:.3g}" for size in buckets[:6])
    return f"{len(buckets)} buckets ({sizes}{', …' if len(buckets) > 6 else ''} MiB)"


def read_list(value: Any) -> Tuple[int, ...]:
    """Bytes of `1+4+12.5` MB, none for an empty text, or ValueError with a sentence."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a list of sizes in MB, as in 1+4+12.5")
    try:
        return tuple(_read_mebibytes(float(size)) for size in value.split("+") if value)
    except ValueError as error:
        raise ValueError(f"{value!r} is not a list of sizes in MB above 0, as in 1+4+12.5") from error


def _read_mebibytes(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e6:
        raise ValueError(f"{value!r} is not a size in MB above 0")
    return max(1, int(value * MIB))


def _read_sizes(text: str) -> List[int]:
    return [int(size) for size in text.split(",") if size.strip()]
