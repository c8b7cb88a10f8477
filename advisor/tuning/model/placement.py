"""Which server holds how much: variables cut into blocks, and blocks dealt out. Exact arithmetic, nothing fitted.

Paddle Fluid's transpiler has these rules (`slice_var_up`, `min_block_size`, RoundRobin, HashName), but for by bytes.
"""

import heapq
import zlib
from functools import lru_cache

from advisor.protocol.training.parameter_servers import Placement, Variable


def cut(variables: tuple[Variable, ...], servers: int, min_block: int) -> list[tuple[str, int]]:
    """Return (name, elements) of each block: at most one a server, none but the last of a variable below `min_block`.

    Blocks are whole rows, as Fluid's `slice_variable` aligns them. `min_block` 0 leaves variables whole.
    """
    blocks: list[tuple[str, int]] = []
    for name, elements, row in variables:
        pieces = min(servers, max(1, elements // min_block)) if min_block else 1
        size = -(-elements // pieces)
        size += -size % row
        count = -(-elements // size)
        blocks += [
            (f"{name}.block{index}" if count > 1 else name, min(size, elements - index * size))
            for index in range(count)
        ]
    return blocks


@lru_cache(maxsize=4096)
def share_out(
    variables: tuple[Variable, ...], servers: int, min_block: int, rule: Placement
) -> tuple[int, ...]:
    """Return the elements that each server holds."""
    held = [0] * servers
    blocks = cut(variables, servers, min_block)
    if rule is Placement.BY_BYTES:
        fullness = [(0, server) for server in range(servers)]
        for _, elements in sorted(blocks, key=lambda block: -block[1]):
            least, server = fullness[0]
            heapq.heapreplace(fullness, (least + elements, server))
        return tuple(elements for elements, _ in sorted(fullness, key=lambda full: full[1]))
    for index, (name, elements) in enumerate(blocks):
        held[(index if rule is Placement.ROUND_ROBIN else zlib.crc32(name.encode())) % servers] += elements
    return tuple(held)
