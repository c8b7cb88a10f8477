"""What all ranks have to agree on before an arm takes turns. Collective."""

from __future__ import annotations

from typing import List, Tuple

from .arm import Arm
from .order import RaceRules
from .parts import PEER_TIMEOUT_S, RankParts


def agree_on_warm_up(parts: RankParts, rules: RaceRules) -> Tuple[int, bool]:
    """Untimed steps of the arm that was switched to, and whether the first of them say nothing of its pace."""
    levers = parts.levers
    steps = max(1, rules.warmup_steps, min(levers.least_warm_up, rules.max_steps))
    steps, slow = parts.agree_on_most([steps, int(levers.starts_slowly)], "how long to warm up")
    return steps, bool(slow)


def agree_on_arm(parts: RankParts, arm: Arm, arms: List[Arm]) -> None:
    """Strategies that came to the same thing in force, on every rank, are one arm; and whether its loader
    hardly keeps up with it on any of them."""
    arm.in_force = parts.levers.describe_in_force()
    alike = [other.place for other in arms[: arm.place] if other.in_force == arm.in_force]
    queue, own = parts.reading.find_queue(), [0, 0, 0]
    if queue is not None:
        own = [queue.count_asked(), queue.workers, int(queue.is_strained())]
    views = parts.exchange.gather([alike, own], "which arms are the same", PEER_TIMEOUT_S) or []
    common = set.intersection(*(set(same) for same, _ in views)) if views else set()
    most = [max(numbers) for numbers in zip(*(numbers for _, numbers in views))]
    place, most = parts.share([min(common, default=-1), most], "which arms are the same")
    arm.asked, arm.workers, arm.is_strained = most[0], most[1], bool(most[2])
    if place >= 0:
        arm.same_as = arms[place].order.block_id
