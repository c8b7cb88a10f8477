"""A process group of one rank, over gloo, for tests that need a real one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

kept: deque[Any] = deque(maxlen=32)
"""The latest process groups. A group that DistributedDataParallel's reducer is the last to hold is destroyed without
the interpreter's lock being given up, and its destructor waits for the group's threads; one of them may wait for that
lock, to let go of the tensor of the last sum. So they wait for each other for ever, and no time limit
of a test can end that. By the time it leaves this list a group has nothing to let go of any more."""


@contextmanager
def open_lone_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    kept.append(dist.group.WORLD)
    destroy = dist.destroy_process_group
    yield
    destroy()
