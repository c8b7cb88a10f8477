"""Buckets of at most so many layers: each bucket gets a size of its own, found from the order of the gradients."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

from ...observe.reduced import find_reduced, list_reduced
from ...private_torch import BUCKET_CONFIG, GET_LOG
from .bucket_plan import BucketPlan


def count_layers(ddp: Any) -> int:
    """Modules that hold parameters whose gradients this model reduces."""
    return len(set(_find_layers(ddp, list_reduced(ddp))))


def explain_no_list(ddp: Any) -> Optional[str]:
    """Why this model's buckets cannot have a size each, in the order of the gradients, or None when they can."""
    if ddp.find_unused_parameters and not ddp.static_graph:
        return "With find_unused_parameters=True DDP never puts buckets into the order in which gradients become ready."
    return explain_no_sizes(ddp)


def explain_no_layers(ddp: Any) -> Optional[str]:
    """Why this model's buckets cannot be limited to a number of layers, or None when they can."""
    reason = explain_no_sizes(ddp)
    if reason is None and sorted(read_order(ddp)) != list(range(len(list_reduced(ddp)))):
        return "DDP's log does not tell in which order the gradients of all parameters become ready."
    return reason


def explain_no_sizes(ddp: Any) -> Optional[str]:
    """Why this model's buckets cannot have a size each, or None when they can."""
    if not BUCKET_CONFIG.is_in(ddp):
        return "This torch rebuilds all buckets to one size; one size for each needs torch 2.12."
    if len({(parameter.dtype, parameter.device) for parameter in list_reduced(ddp)}) > 1:
        return "The model's parameters have several number formats or devices, which DDP buckets separately."
    return None


def limit_layers(ddp: Any, plan: BucketPlan, order: List[int]) -> BucketPlan:
    """`plan` with the byte caps, bucket by bucket, that keep its `most_layers`; `order` is of the parameters."""
    if not plan.most_layers:
        return plan
    reduced = find_reduced(ddp)
    if reduced is None:
        return plan
    parameters, sparse = reduced.parameters, reduced.sparse
    layers = _find_layers(ddp, parameters)
    # A sparse gradient is alone in its bucket anyhow, and uses up no cap.
    gradients = [
        (layers[index], parameters[index].numel() * parameters[index].element_size())
        for index in order
        if not sparse[index]
    ]
    return dataclasses.replace(plan, listed_bytes=cap_by_layers(gradients, plan))


def cap_by_layers(gradients: Iterable[Tuple[int, int]], plan: BucketPlan) -> Tuple[int, ...]:
    """Bytes of each bucket for gradients (layer, bytes) in the order in which they are put into buckets.

    A bucket closes as DDP closes it, once it holds its cap, or before a gradient of one layer too many.
    """
    caps: List[int] = []
    held = 0
    inside: Set[int] = set()
    for layer, size in gradients:
        cap = plan.cap_bytes if caps else plan.first_bytes
        if held and (held >= cap or (layer not in inside and len(inside) == plan.most_layers)):
            caps.append(held)
            held, inside = 0, set()
        held += size
        inside.add(layer)
    return (*caps, held)


def read_order(ddp: Any) -> List[int]:
    """Indices of the parameters in the order in which DDP puts them into buckets; empty when it has not told yet."""
    if ddp.find_unused_parameters and not ddp.static_graph:
        return list(range(len(list_reduced(ddp))))  # never rebuilt: the order of definition
    return [index for bucket in _read_rebuilt(ddp) for index in bucket]


def find_most_layers(ddp: Any) -> Optional[int]:
    """The most layers that share a bucket now, from DDP's own log; None where it does not list the buckets."""
    buckets = _read_rebuilt(ddp)
    if not buckets:
        return None
    layers = _find_layers(ddp, list_reduced(ddp))
    return max(len({layers[index] for index in bucket}) for bucket in buckets)


def _read_rebuilt(ddp: Any) -> List[List[int]]:
    text = str(GET_LOG.of(ddp)().get("rebuilt_per_bucket_param_indices", ""))
    return [[int(index) for index in bucket.split()] for bucket in text.split(",") if bucket.strip()]


def _find_layers(ddp: Any, parameters: List[Any]) -> List[int]:
    """The module that holds each parameter first, as its number; -1 for one that the script has replaced since."""
    owners: Dict[int, int] = {}
    for layer, module in enumerate(ddp.module.modules()):
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), layer)
    return [owners.get(id(parameter), -1) for parameter in parameters]
