"""Variables that a training inherits and may do better without: set for another fault, release or cluster.

Only those without which every training still starts are raced away. What may be needed to reach other ranks at all, and
what changes how numbers are rounded, is told and left alone.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from advisor.protocol.kinds import Effect
from advisor.protocol.training.own_knobs import INHERITED, UNSET


@dataclass(frozen=True)
class Inherited:
    """One variable that stands in the environment."""

    name: str
    sentence: str
    may_go: bool
    """Whether a training is sure to start without it, and computes the same."""


_DEBUGGING = "It is for debugging, and costs time in every step."
_GONE = "NCCL {} and later do not read it: it can be taken out, and makes no difference to measure."
_KNOWN: tuple[tuple[str, str, bool], ...] = (
    (r"CUDA_LAUNCH_BLOCKING|PYTORCH_NO_CUDA_MEMORY_CACHING|TORCH_DISTRIBUTED_DEBUG", _DEBUGGING, True),
    (
        r"TORCH_NCCL_BLOCKING_WAIT|(TORCH_)?NCCL_(DESYNC_DEBUG|ENABLE_TIMING)|NCCL_BLOCKING_WAIT",
        _DEBUGGING,
        True,
    ),
    (r"CUDA_DEVICE_MAX_CONNECTIONS", "With few queues a card's kernels wait for each other.", True),
    (r"PYTORCH_(CUDA_)?ALLOC_CONF", "Torch keeps GPU memory in another way than its own.", True),
    (
        r"(OMP|KMP|GOMP)_\w+|MKL_(NUM_THREADS|DYNAMIC|DOMAIN_NUM_THREADS)",
        "It sets how many CPU threads a rank starts, where they run, or how long they wait.",
        True,
    ),
    # As the libraries of nvidia-nccl-cu12 2.16.5 to 2.32.3 have it; docs/cluster.md.
    (r"NCCL_((LL|TREE)_THRESHOLD|IB_CUDA_SUPPORT)", _GONE.format("2.16"), False),
    (r"NCCL_WORK_FIFO_DEPTH", _GONE.format("2.23"), False),
    (r"NCCL_(CREATE_THREAD_CONTEXT|SHM_(MEMCPY_MODE|USE_CUDA_MEMCPY))", _GONE.format("2.30"), False),
    (
        r"NCCL_(ALGO|PROTO|NTHREADS|(MIN|MAX)_(NCHANNELS|CTAS)|CGA_CLUSTER_SIZE|BUFFSIZE|"
        r"SOCKET_NTHREADS|NSOCKS_PERTHREAD|LAUNCH_MODE|DEBUG|DEBUG_SUBSYS)",
        "NCCL does not choose this by itself any more; it may have been right for another release or network.",
        True,
    ),
    (r"NCCL_\w+", "The ranks may need it to reach each other: it is left alone.", False),
    (r"NVIDIA_TF32_OVERRIDE|MKL_CBWR", "It changes how numbers are rounded: it is left alone.", False),
)
_IDLE = {"", "0", "OFF", "WARN", "VERSION"}
"""Values that switch what is for debugging off."""


def list_inherited(environment: Mapping[str, str]) -> tuple[Inherited, ...]:
    """Return the variables that bear on speed, each with what it does."""
    found = []
    for name, value in sorted(environment.items()):
        known = next((entry for entry in _KNOWN if re.fullmatch(entry[0], name)), None)
        is_idle = value.upper() in _IDLE and (known is None or known[1] == _DEBUGGING or name == "NCCL_DEBUG")
        if known is not None and not is_idle:
            found.append(Inherited(name, known[1], known[2]))
    return tuple(found)


def race_away(environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a knob for each variable that may go: as it is inherited, and unset."""
    return [
        {
            "name": f"inherited_{each.name}",
            "at": f"${each.name}",
            "values": (INHERITED, UNSET),
            "baseline": INHERITED,
            "effect": Effect.EXACT,
        }
        for each in list_inherited(environment)
        if each.may_go
    ]
