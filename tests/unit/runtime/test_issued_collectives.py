"""Every collective that this torch issues is timed, by whatever name its process groups have for it."""

import inspect
import re

import torch.distributed as dist
from torch.distributed import distributed_c10d

from agent.runtime.inject.collectives import ISSUED

_NO_COLLECTIVE = {"rank", "size", "name"}


def test_every_collective_that_torch_issues_is_timed() -> None:
    called = set(re.findall(r"\bgroup\.([a-z]\w*)\(", inspect.getsource(distributed_c10d)))
    issued = {name for name in called - _NO_COLLECTIVE if hasattr(dist.ProcessGroup, name)}

    assert issued
    assert issued <= set(ISSUED)
