"""Batches that a model was given before: the same ones, and the same ones with some noise on them."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Sequence, Set, Tuple

import torch

from ..observe.digests import digest
from ..observe.tensors import find_tensors, look_past
from ..untraced import untraced

_DIGESTED, _SKETCHED = 1024, 32
"""Numbers of a tensor, evenly spread, that its digest is made of; of those of a batch, drawn by dice that always fall
alike, that are kept."""
_NEAR = 0.15
"""Of the median distance between two batches: so close are none that have nothing in common."""
_FEWEST = 4
"""Batches of one size from which such a median is told."""


@untraced
def sketch(given: Any) -> str:
    """Of what a model is given, alike for the same batch on every rank: its digest, its size, some of its numbers."""
    parts: List[torch.Tensor] = []
    with torch.no_grad():
        for tensor in find_tensors(given):
            with look_past(tensor):
                is_plain = tensor.layout is torch.strided and not tensor.is_nested
                flat = tensor.detach().reshape(-1) if is_plain else torch.empty(0)
                parts.append(flat[:: max(1, flat.numel() // _DIGESTED)][:_DIGESTED].to("cpu"))
        found = digest([digest(part).hex() for part in parts]).hex()[:16]
        numbers = torch.cat([part.to(torch.float32) for part in parts]) if parts else torch.empty(0)
        dice = torch.Generator().manual_seed(numbers.numel())
        some = numbers[
            torch.randint(max(1, numbers.numel()), (min(numbers.numel(), _SKETCHED),), generator=dice)
        ]
    return f"{found} {numbers.numel()} {' '.join(f'{number:.4g}' for number in some.tolist())}"


def count_repeated(batches: Sequence[str]) -> int:
    """Of sketches in any order: how many have one before them that is the same, or nearly."""
    seen: Set[str] = set()
    near = [False] * len(batches)
    for places, numbers in _group(batches):
        scaled = numbers / numbers.std(0).clamp(min=1e-12)
        apart = torch.cdist(scaled, scaled, p=1.0)
        first, second = torch.tril_indices(len(places), len(places), -1)
        usual = apart[first, second].median()
        # Where most have the same few numbers, zeros in a sparse batch, only digests tell.
        close = (apart[first, second] <= _NEAR * usual) & (usual > 0)
        for place in first[close].tolist():
            near[places[place]] = True
    repeated = 0
    for batch, is_near in zip(batches, near):
        found = batch.partition(" ")[0]
        repeated += is_near or found in seen
        seen.add(found)
    return repeated


def measure_variety(batches: Sequence[str]) -> float:
    """Of one rank's sketches: how far a number varies from batch to batch, as a share of how far all of them vary; 0
    where nothing tells."""
    for places, numbers in _group(batches):
        if 2 * len(places) > len(batches):
            return float(numbers.std(0).mean() / numbers.std().clamp(min=1e-12))
    return 0.0


def _group(batches: Sequence[str]) -> Iterator[Tuple[List[int], torch.Tensor]]:
    """Those of one size, with the numbers of each."""
    by_size: Dict[str, List[int]] = {}
    for place, batch in enumerate(batches):
        by_size.setdefault(batch.split(" ")[1], []).append(place)
    for size, places in by_size.items():
        if size != "0" and len(places) >= _FEWEST:
            rows = [[float(number) for number in batches[place].split(" ")[2:]] for place in places]
            yield places, torch.tensor(rows, dtype=torch.float64).nan_to_num(0.0, 0.0, 0.0)
