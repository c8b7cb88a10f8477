"""What a lever of fully_shard needs: a model whose layers are sharded one by one."""

from __future__ import annotations

from typing import Any, List, Optional

from ...observe.sharded import FULLY_SHARD, explain_unknown_groups, find_kind, list_inner


def explain_no_layers(roots: List[Any], fixed: str, consequence: str) -> Optional[str]:
    """Why nothing can be switched between these models' layers, or None.

    `fixed` is the sentence for FullyShardedDataParallel, `consequence` what follows where the whole model is one group.
    """
    if any(find_kind(root) != FULLY_SHARD for root in roots):
        return fixed
    missing = next(filter(None, map(explain_unknown_groups, roots)), None)
    if missing is not None or list_inner(roots):
        return missing
    sentence = f"fully_shard made one group of the whole model: {consequence}."
    return f"{sentence} Apply fully_shard to the model's layers first."
