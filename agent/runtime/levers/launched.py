"""Proof for the knobs a session was launched with: they are in force for all of its blocks, or not at all."""

from __future__ import annotations

import os
from typing import Any, List, Mapping, Optional

from .lever import Evidence

MIB = 1024 * 1024


def plan_launched_cap(cold: Mapping[str, Any]) -> Optional[float]:
    """The `bucket_cap_mb` that DistributedDataParallel is built with, or None to leave the script's own."""
    if cold.get("fuse_all_reduce_ops") is False:
        return 1 / MIB
    cap = cold.get("fuse_grad_size_in_MB")
    return float(cap) if cap is not None else None


def prove_launched(cold: Mapping[str, Any], backend: str, replicas: List[Any]) -> Evidence:
    """Environment knobs: the rank has the value and a backend that reads it. Bucket size: DDP was built with it."""
    evidence = Evidence()
    for knob, value in cold.items():
        if knob in ("fuse_all_reduce_ops", "fuse_grad_size_in_MB"):
            caps = {int(ddp.bucket_bytes_cap) for ddp in replicas}
            cap = plan_launched_cap(cold)
            if cap is None or caps == {int(cap * MIB)}:
                evidence.consumed[knob] = (
                    f"DistributedDataParallel was built with caps of {sorted(caps)} bytes."
                )
            else:
                evidence.not_consumed[knob] = f"DistributedDataParallel has caps of {sorted(caps)} bytes."
        elif not knob.startswith("NCCL_"):
            evidence.not_consumed[knob] = (
                f"{knob} cannot be set at launch by this runtime; give it as an override."
            )
        elif os.environ.get(knob) != _write(value):
            evidence.not_consumed[knob] = f"{knob} is {os.environ.get(knob)!r} in this rank's environment."
        elif "nccl" not in backend:
            evidence.not_consumed[knob] = f"The backend is {backend}, which does not read {knob}."
        else:
            evidence.consumed[knob] = (
                f"{knob}={_write(value)} in the rank's environment; the backend is {backend}."
            )
    return evidence


def _write(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
