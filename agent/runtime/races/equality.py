"""Proof that all ranks hold the same parameters: sums of their bits, compared through the rank store."""

from __future__ import annotations

from typing import Any, Dict, List

import torch

from ..private_torch import MODULE_PARAMETERS

_AS_INTEGERS: Dict[int, torch.dtype] = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_PIECE = 2**22
"""Numbers summed at a time: 32 MiB when widened."""


def sum_bits(replicas: List[Any]) -> List[int]:
    """One number per DistributedDataParallel model, of the parameters that it keeps equal; waits for the device.

    Whole numbers, so that neither the order of the sum nor an infinity matters.
    """
    with torch.no_grad():
        return [_sum_model(ddp) for ddp in replicas]


def _sum_model(ddp: Any) -> int:
    sums = []
    for place, parameter in enumerate(MODULE_PARAMETERS.of(ddp), start=1):
        flat = parameter.detach()
        flat = (flat.to_local() if hasattr(flat, "to_local") else flat).reshape(-1)
        if flat.is_complex():
            flat = torch.view_as_real(flat).reshape(-1)
        bits = flat.view(_AS_INTEGERS[flat.element_size()])
        # In pieces: torch widens all that it sums first. Each parameter has a weight of its own: two that were
        # exchanged do not go unnoticed.
        sums += [place * piece.sum(dtype=torch.int64) for piece in bits.split(_PIECE)]
    if not sums:
        return 0
    return int(torch.stack([number.to(sums[0].device) for number in sums]).sum())
