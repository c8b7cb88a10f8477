"""Whose turn it is: the same order on every rank, without a word between them."""

from __future__ import annotations

import random
from typing import List, Sequence, TypeVar

T = TypeVar("T")


def order_turns(race_id: str, cycle: int, arms: Sequence[T]) -> List[T]:
    """A random order, and in the next cycle its reverse: what drifts steadily hits all arms alike.

    So the last arm of the first cycle is the first one of the second, and takes its two segments in one go. It makes
    one untimed step less, and by chance so does the first one of the next cycle: what the script does every few steps
    (a batch that comes late, a log) is bound neither to the untimed steps nor to an arm.
    """
    order = list(arms)
    random.Random(f"{race_id}/{cycle // 2}").shuffle(order)
    return order[::-1] if cycle % 2 else order


def choose_offset(race_id: str, cycle: int, place: int, most: int) -> int:
    """By chance none or up to `most` - 1 more untimed steps before this arm's turn in that cycle."""
    return random.Random(f"{race_id}/{cycle}/{place}").randrange(most)
