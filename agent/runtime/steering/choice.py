"""Who steers a training, or why nobody can: the trouble's code with the facts of its sentence."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch.distributed as dist

from ..observe.sharded import explain_unknown
from ..private_torch import explain_unusable
from ..races.parts import RankParts
from ..rank_process import RankProcess
from .conversation import Conversation, OnlineTuning
from .production import Production
from .steering import Steering

Trouble = Tuple[str, Dict[str, Any]]


def explain_no_steering(process: RankProcess) -> Optional[Trouble]:
    """At the first boundary of a model that trains; None where it can be steered."""
    in_group = dist.is_available() and dist.is_initialized()
    if not in_group and (process.environment.world_size > 1 or process.models.has_replicas):
        return "own_groups", {}
    unknown = (explain_unknown(root) for root in process.models.list_sharded())
    unusable = explain_unusable(process.models.list_replicas()) or next(filter(None, unknown), None)
    return None if unusable is None else ("private_torch", {"why": unusable})


def choose_steering(process: RankProcess) -> Steering:
    strategy, parts = process.environment.strategy, RankParts(process)
    if strategy is None:
        return Conversation(parts)
    return OnlineTuning(parts) if strategy.get("tune") else Production(parts, strategy)
