"""Where a training differs from the one that a strategy was measured on, in sentences. Pure functions."""

from __future__ import annotations

from typing import Any, List, Mapping

CLOSE = 0.01
"""Relative difference of a size below which it is the same model."""
COUNTS = {
    "world_size": "ranks",
    "nodes": "nodes",
    "microbatches_per_step": "forward passes a step",
}
SIZES = {
    "gradient_bytes": "bytes of gradients a step",
    "batch_size_per_rank": "samples a rank and step",
}
BATCH = ("microbatches_per_step", "batch_size_per_rank")
NAMES = {"backend": "Backend", "device_name": "Device", "gradient_dtype": "Gradients", "sharding": "Sharding"}


def describe_mismatch(
    strategy: Mapping[str, Any], facts: Mapping[str, Any], baseline: Mapping[str, Any]
) -> List[str]:
    """`strategy` may hold `holds_for` (facts) and `baseline` (knobs) as they were measured; what it lacks is not held
    against the script."""
    measured = strategy.get("holds_for") or {}
    found = []
    # Knobs of the script's own may be the batch itself: then those of the baseline say nothing.
    unsure = BATCH if strategy.get("own") else ()
    for name, words in COUNTS.items():
        if name in measured and name not in unsure and measured[name] != facts[name]:
            found.append(f"measured with {measured[name]:g} {words}, here are {facts[name]:g}")
    for name, words in SIZES.items():
        was, now = measured.get(name) or 0, facts[name]
        if was and name not in unsure and abs(now - was) > CLOSE * was:
            found.append(f"measured with {was:g} {words}, here are {now:g}")
    for name, words in NAMES.items():
        was, now = measured.get(name), facts[name]
        if was and was != now:
            found.append(f"{words}: measured with {was}, here is {now or 'none'}")
    was, now = str(measured.get("torch_version", "")), str(facts["torch_version"])
    if was and _minor(was) != _minor(now):
        found.append(f"measured under torch {was}, here is {now}")
    for knob in strategy["changes"]:
        own = (strategy.get("baseline") or {}).get(knob)
        if own is not None and knob in baseline and baseline[knob] != own:
            found.append(f"your script had {knob} {own} when it was measured, and has {baseline[knob]} now")
    return [f"{sentence}." for sentence in found]


def _minor(version: str) -> List[str]:
    return version.split("+")[0].split(".")[:2]
