"""The untimed steps before a turn, in which a queue of batches that arms share comes to where the arm had left it.

A queue that is filled in a slow arm's turns and eaten in a fast one's would make the fast one as fast as if it had no
loader to wait for.
"""

from __future__ import annotations

from typing import Optional, Tuple

from .arm import Arm
from .judge import Course
from .loss_check import Steps
from .parts import RankParts
from .turns import choose_offset


def lead_in(parts: RankParts, arm: Arm, course: Course, switched: Optional[Tuple[str, int]]) -> Steps:
    """`switched` is the race's id and the cycle, where the arm was switched to.

    Workers that began together deliver together: chance decides where in their cycle the timed steps begin.
    """
    steps, queue = 1, None
    if switched is not None:
        steps = course.lead_in
        if course.workers:
            steps += choose_offset(*switched, arm.place, course.workers)
            queue = parts.reading.find_queue()
    if queue is not None:
        queue.lower(arm.queued)
    for left in range(steps, 0, -1):
        if left == 1 and queue is not None and queue is parts.reading.find_queue():
            queue.fill(arm.queued)
        yield


def note_queue(parts: RankParts, arm: Arm, course: Course) -> None:
    """The arm's turn is over."""
    queue = parts.reading.find_queue() if course.workers else None
    if queue is not None:
        arm.queued = queue.count_ready()
