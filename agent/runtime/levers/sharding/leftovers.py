"""Gathered parameters do not outlive the pass that they were gathered for.

fully_shard's next pass takes what it finds gathered: after a forward without a backward, and an optimizer's step, that
would be the weights of before it.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

import torch

from ... import private_torch
from ...guard import guarded


class Leftovers:
    """Shards again what a lever left gathered: after a forward without gradients, and before an optimizer's step."""

    def __init__(self, of_gathers_ahead: bool = False) -> None:
        """`of_gathers_ahead`: only what was gathered for a module that did not run then."""
        self._of_gathers_ahead = of_gathers_ahead
        self._modules: Dict[Any, List[Any]] = {}
        self._hooks: List[Any] = []

    def watch(self, modules: Mapping[Any, List[Any]], around: List[Any]) -> None:
        """From here on, of these modules with their groups; forwards of `around` are looked at as they end."""
        self.stop()
        self._modules = dict(modules)
        end = guarded(self._end_forward)
        self._hooks = [module.register_forward_hook(end) for module in around if self._modules]

    def stop(self) -> None:
        """What is left is sharded, and nothing is looked at any more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.drop()
        self._modules = {}

    def drop(self, ended: Any = None) -> None:
        """Call in no pass, or of the one module whose forward has `ended`: others may be in the middle of theirs."""
        for module, groups in self._modules.items():
            if ended is not None and module is not ended:
                continue
            pending = [group for group in groups if private_torch.GATHERED.find(group) is not None]
            if pending or (not self._of_gathers_ahead and any(map(_is_gathered, groups))):
                for group in pending:
                    group.wait_for_unshard()
                module.reshard()

    def _end_forward(self, module: Any, _args: Any, _output: Any) -> None:
        if not torch.is_grad_enabled():
            self.drop(module if module in self._modules else None)


def _is_gathered(group: Any) -> bool:
    return bool(group.is_unsharded or group.is_sharded_post_forward)
