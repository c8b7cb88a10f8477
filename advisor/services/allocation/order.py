"""The order in which jobs get agents: priorities, what was begun, fair shares of the owners, age."""

import heapq
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor.protocol.asked.jobs import Priority


@dataclass(frozen=True)
class Claim:
    """A job that has a place in the order."""

    priority: Priority
    owner: str
    agents: int
    """How many it waits for."""
    has_begun: bool = False
    """Its session ended and the next one is due: what was begun is finished first."""


def arrange(claims: Sequence[Claim], held: Mapping[str, int], used_s: Mapping[str, float]) -> list[int]:
    """Return the indices of `claims`, which are given by age, in the order in which jobs get agents.

    Among jobs of one priority those come first that have begun, then those of the owner who holds the fewest agents
    (`held`, and what jobs get that came before), then of the one who has used the fewest agent-seconds (`used_s`),
    then the oldest.
    """
    counts = defaultdict(int, held)
    classes: defaultdict[tuple[int, bool], dict[str, deque[int]]] = defaultdict(dict)
    for index, claim in enumerate(claims):
        owners = classes[-claim.priority.rank, not claim.has_begun]
        owners.setdefault(claim.owner, deque()).append(index)
    order: list[int] = []
    for key in sorted(classes):
        waiting = classes[key]
        heap = [(counts[owner], used_s.get(owner, 0.0), line[0], owner) for owner, line in waiting.items()]
        heapq.heapify(heap)
        while heap:
            _, used, index, owner = heapq.heappop(heap)
            order.append(waiting[owner].popleft())
            counts[owner] += claims[index].agents
            if waiting[owner]:
                heapq.heappush(heap, (counts[owner], used, waiting[owner][0], owner))
    return order
