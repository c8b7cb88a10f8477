"""What lies where: variables cut into blocks, blocks on servers, roles on nodes. Nothing here needs torch."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

RULES = ("round_robin", "hash_name", "by_bytes")


@dataclass(frozen=True)
class Variable:
    """A tensor of the model."""

    name: str
    elements: int
    row: int = 1
    """Elements of one of its rows; a block holds whole rows."""


@dataclass(frozen=True)
class Block:
    """A piece of a variable, which lies on one server."""

    name: str
    start: int
    """First element, counted over all variables one behind the other."""
    stop: int

    @property
    def elements(self) -> int:
        return self.stop - self.start


def cut_into_blocks(variables: Sequence[Variable], servers: int, min_block: int) -> list[Block]:
    """Cut each variable into as many blocks as there are servers, but into none under `min_block` elements.

    This is the rule of Fluid's transpiler; its `slice_var_up=False` is a `min_block` of 0: whole variables.
    """
    blocks, begin = [], 0
    for variable in variables:
        pieces = min(servers, max(1, variable.elements // min_block)) if min_block else 1
        size = -(-variable.elements // pieces)
        size += -size % variable.row
        starts = range(0, variable.elements, size)
        for number, start in enumerate(starts):
            name = variable.name if len(starts) == 1 else f"{variable.name}.block{number}"
            blocks.append(Block(name, begin + start, begin + min(start + size, variable.elements)))
        begin += variable.elements
    return blocks


def choose_servers(blocks: Sequence[Block], servers: int, rule: str) -> list[int]:
    """Return the number of the server that holds each block, by one of the RULES."""
    if rule == "round_robin":
        return [number % servers for number in range(len(blocks))]
    if rule == "hash_name":
        return [zlib.crc32(block.name.encode()) % servers for block in blocks]
    held, homes = [0] * servers, [0] * len(blocks)
    for number in sorted(range(len(blocks)), key=lambda number: -blocks[number].elements):
        homes[number] = held.index(min(held))
        held[homes[number]] += blocks[number].elements
    return homes


def find_largest_share(blocks: Sequence[Block], homes: Sequence[int], servers: int) -> float:
    """Return the part of all elements that the fullest server holds: 1 / servers at best."""
    held = [0] * servers
    for block, home in zip(blocks, homes, strict=True):
        held[home] += block.elements
    return max(held) / max(1, sum(held))


def lay_out_nodes(
    trainers: int, servers: int, nodes: int, trainer_nodes: int, place: str
) -> tuple[list[int], list[int]]:
    """Return the node of each trainer and of each server.

    Trainers fill the first `trainer_nodes` nodes evenly. Servers that stand apart share the nodes behind those, or the
    trainers' where there are none; servers that stand together with trainers share the trainers' nodes.
    """
    of_trainers = [trainer * trainer_nodes // trainers for trainer in range(trainers)]
    apart = list(range(trainer_nodes, nodes))
    offered = apart if place == "apart" and apart else list(range(trainer_nodes))
    return of_trainers, [offered[server % len(offered)] for server in range(servers)]
