"""Whether the ranks that reduce a model together hold the same parameters: a checksum each, and one small exchange."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import torch
import torch.distributed as dist

from ..observe.reduced import find_reduced, list_reduced
from .parts import PEER_TIMEOUT_S, RankParts

Bits = List[Tuple[List[int], int]]
"""Of one rank, for each model: the ranks that reduce it together, and a checksum of its parameters."""
MOST_NAMES = 3
FIRST_GAP, LARGEST_GAP = 8, 256
"""Steps from one comparison to the next: they double while nothing changes."""


class Agreement:
    """Compares at steps that are the same on every rank, ever more rarely; often again once others are trained."""

    def __init__(self, parts: RankParts) -> None:
        self._parts = parts
        self._gap, self._left = FIRST_GAP, FIRST_GAP
        self._trained = self._describe_trained()

    def count(self, steps: int) -> int:
        """So many more steps have ended: how many are left until the next comparison, 0 where it is due."""
        self._left = max(0, self._left - steps)
        return self._left

    def compare(self) -> str:
        """Collective. A sentence where ranks hold different parameters that were equal before any setting was in force.

        Under local SGD they differ between two averagings: then nothing is looked at.
        """
        parts = self._parts
        trained, self._trained = self._trained, self._describe_trained()
        [is_new] = parts.agree_on_most([int(trained != self._trained)], "which parameters are trained")
        self._gap = FIRST_GAP if is_new else min(2 * self._gap, LARGEST_GAP)
        self._left = self._gap
        if parts.levers.replaces_reduction:
            return ""
        apart = find_all_apart(parts)
        return next((why for place, why in apart.items() if place not in parts.apart_before), "")

    def _describe_trained(self) -> int:
        models = self._parts.list_replicas()
        return hash(tuple(p.requires_grad for ddp in models for p in list_reduced(ddp)))


def find_all_apart(parts: RankParts) -> Dict[int, str]:
    """Collective. The models of which ranks hold different parameters, by their place, each with a sentence."""
    replicas = parts.list_replicas()
    views = parts.exchange.gather(sum_bits(replicas), "checksums of parameters", PEER_TIMEOUT_S)
    found = find_apart(views) if views is not None else {}
    apart = {int(place): tuple(pair) for place, pair in parts.share(found, "equal parameters").items()}
    told: Dict[int, str] = {}
    for place, (one, other) in apart.items():
        own = sum_each(list_reduced(replicas[place]))
        sums = parts.exchange.gather(own, "which parameters differ", PEER_TIMEOUT_S)
        if sums is not None:
            reduced = find_reduced(replicas[place])
            names = reduced.names if reduced is not None else {}
            differ = [names.get(i, str(i)) for i, sum in enumerate(sums[one]) if sum != sums[other][i]]
            told[place] = describe_apart(one, other, differ, len(own))
    told = parts.share(told, "which parameters differ") if apart else told
    return {int(place): sentence for place, sentence in told.items()}


def describe_apart(one: int, other: int, names: Sequence[str], count: int) -> str:
    """Which parameters differ, for people."""
    shown = ", ".join(name.lstrip(".") for name in names[:MOST_NAMES])
    rest = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"rank {other} holds other values than rank {one} in {len(names)} of {count} parameters ({shown}{rest})"


def find_apart(views: Sequence[Bits]) -> Dict[int, Tuple[int, int]]:
    """By a model's place, two ranks that reduce it together and hold different parameters. `views` in rank order."""
    apart: Dict[int, Tuple[int, int]] = {}
    for place in range(min(map(len, views), default=0)):
        first: Dict[Tuple[int, ...], int] = {}
        for rank, view in enumerate(views):
            ranks, bits = view[place]
            one = first.setdefault(tuple(ranks), rank)
            if views[one][place][1] != bits:
                apart.setdefault(place, (one, rank))
    return apart


def copy_parameters(replicas: Sequence[Any]) -> None:
    """Collective. Gives all ranks of each model the parameters of the first of them."""
    with torch.no_grad():
        for ddp in replicas:
            source = dist.get_process_group_ranks(ddp.process_group)[0]
            for parameter in list_reduced(ddp):
                dist.broadcast(parameter.data, source, ddp.process_group)


_AS_INTEGERS: Dict[int, torch.dtype] = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_PIECE = 2**22
"""Numbers summed at a time: 32 MiB when widened."""


def sum_bits(replicas: Sequence[Any]) -> Bits:
    """Of every DistributedDataParallel model the parameters that it keeps equal; waits for the device.

    Whole numbers, so that neither the order of the sum nor an infinity matters.
    """
    found: Bits = []
    for ddp in replicas:
        # Each parameter has a weight of its own: two that were exchanged do not go unnoticed.
        sums = enumerate(sum_each(list_reduced(ddp)), start=1)
        ranks = dist.get_process_group_ranks(ddp.process_group)
        found.append(
            (ranks if len(ranks) < dist.get_world_size() else [], sum(place * bits for place, bits in sums))
        )
    return found


def sum_each(parameters: Sequence[torch.Tensor]) -> List[int]:
    """One number for each parameter."""
    with torch.no_grad():
        sums = [_sum(parameter.detach()) for parameter in parameters]
        by_device: Dict[torch.device, List[int]] = {}
        for place, number in enumerate(sums):
            by_device.setdefault(number.device, []).append(place)
        found = [0] * len(sums)
        for places in by_device.values():
            for place, number in zip(places, torch.stack([sums[place] for place in places]).tolist()):
                found[place] = number
    return found


def _sum(parameter: torch.Tensor) -> torch.Tensor:
    flat = (parameter.to_local() if hasattr(parameter, "to_local") else parameter).reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    bits = flat.view(_AS_INTEGERS[flat.element_size()])
    # In pieces: torch widens all that it sums first.
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for piece in bits.split(_PIECE):
        total += piece.sum(dtype=torch.int64)
    return total
