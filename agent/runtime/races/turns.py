"""Whose turn it is: the same order on every rank, without a word between them."""

from __future__ import annotations

import random
from typing import List, Sequence, TypeVar

T = TypeVar("T")


def order_turns(race_id: str, cycle: int, arms: Sequence[T]) -> List[T]:
    """A random order, and in the next cycle its reverse: what drifts steadily hits all arms alike.

    So the last arm of the first cycle is the first one of the second, and takes its two segments in one go.
    """
    order = list(arms)
    random.Random(f"{race_id}/{cycle // 2}").shuffle(order)
    return order[::-1] if cycle % 2 else order
