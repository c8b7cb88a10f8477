"""Brings together what all ranks measured in one race. Pure functions."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

from .results import merge_losses, merge_ranks

DRIFTED = (
    "The ranks held the same parameters before this race and different ones after it: a switch has broken their "
    "agreement. Nothing that it measured counts."
)


def merge_race(
    payloads: Sequence[Mapping[str, Any]],
    blocks: Sequence[str],
    bits_before: Sequence[List[int]],
    script_ended: bool,
) -> Tuple[Dict[str, Dict[str, Any]], str]:
    """`payloads` in rank order: the results by their blocks, and a sentence where the ranks drifted apart.

    `bits_before` are the ranks' checksums of the parameters when the race began.
    """
    bits = [payload["bits"] for payload in payloads]
    equal_before = all(found == bits_before[0] for found in bits_before)
    # A script that ended inside left its ranks as it pleased: between two averagings, or with rank 0's best weights.
    drifted = ""
    if equal_before and not script_ended and any(found != bits[0] for found in bits):
        drifted = DRIFTED
    at_start, _ = merge_losses([payload["loss_at_start"] for payload in payloads])
    common = {"drifted": drifted, "loss_at_start": [] if None in at_start else at_start}
    merged = [
        merge_ranks([payload["arms"][place] for payload in payloads], script_ended)
        for place in range(len(blocks))
    ]
    if len(blocks) == 1:
        # A race of one arm has no turns: the block was measured in one go.
        common["segments"] = []
    return {block: {**result, **common} for block, result in zip(blocks, merged)}, drifted
