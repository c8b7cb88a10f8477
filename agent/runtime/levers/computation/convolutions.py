"""cudnn_exhaustive_search and conv_workspace_size_limit: how cuDNN chooses its convolution algorithms.

Both are set at launch: once cuDNN has a plan for a shape it keeps it, whatever `torch.backends.cudnn.benchmark` says
later, and it reads the limit when it starts.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple

import torch

from ...private_torch import is_convolution
from ..lever import Training

SEARCH = "cudnn_exhaustive_search"
WORKSPACE = "conv_workspace_size_limit"


def set_search(cold: Mapping[str, Any]) -> None:
    """At the start of the process; the script may still set it otherwise, which `prove_search` tells."""
    if SEARCH in cold:
        torch.backends.cudnn.benchmark = bool(cold[SEARCH])


def refuse_convolutions(training: Training, device: torch.device) -> Dict[str, str]:
    """Why there is nothing to choose in this job."""
    if device.type != "cuda":
        reason = "The job trains on CPU, where cuDNN has no part in convolutions."
    elif not torch.backends.cudnn.enabled:
        reason = "The script has switched cuDNN off (torch.backends.cudnn.enabled)."
    elif any(map(is_convolution, training.list_modules())):
        return {}
    else:
        reason = "The model has no convolution, whose algorithm could be chosen."
    return dict.fromkeys((SEARCH, WORKSPACE), reason)


def prove_search(wanted: Any) -> Tuple[bool, str]:
    """Whether it is in force, and a sentence."""
    found = bool(torch.backends.cudnn.benchmark)
    sentence = f"torch.backends.cudnn.benchmark is {found}"
    if found == bool(wanted):
        return True, f"{sentence} since the process started."
    return False, f"{sentence}: the script set it back."
