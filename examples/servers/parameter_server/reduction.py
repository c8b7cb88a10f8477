"""How trainers sum up among themselves: all of them at once, or those of each node first."""

from collections.abc import Sequence

import torch
import torch.distributed as dist


class Reduction:
    """An allreduce of all trainers, each of which has to make one of its own with the same nodes."""

    def __init__(self, nodes: Sequence[int], number: int, in_node: bool) -> None:
        """`nodes` holds the node of each trainer, `number` is this one's; with `in_node` one of each node sends."""
        self._nodes, self._number, self._in_node = nodes, number, in_node
        self._leader = nodes.index(nodes[number])
        self._groups: tuple[dist.ProcessGroup, dist.ProcessGroup] | None = None

    def add_up(self, part: torch.Tensor) -> None:
        """Put the sum of all trainers' parts in the place of each."""
        if not self._in_node:
            dist.all_reduce(part)
            return
        self._groups = self._groups or self._make_groups()
        inner, between = self._groups
        dist.reduce(part, self._leader, group=inner)
        if self._number == self._leader:
            dist.all_reduce(part, group=between)
        dist.broadcast(part, self._leader, group=inner)

    def _make_groups(self) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """Return the group of this trainer's node, and that of the first trainers of all nodes."""
        members: dict[int, list[int]] = {}
        for trainer, node in enumerate(self._nodes):
            members.setdefault(node, []).append(trainer)
        inner = {node: dist.new_group(those) for node, those in members.items()}
        return inner[self._nodes[self._number]], dist.new_group([those[0] for those in members.values()])
