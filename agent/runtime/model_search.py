"""Looks for the models that train where the script has built no DistributedDataParallel: at its optimizers' steps.

A diagnosis also times what several ranks train in a way of their own: by calls of torch.distributed, or through an
engine without levers of ours. Such a step ends with the leading optimizer's, where no rank waits for what another one
has yet to send: in a pipeline a forward does.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

from . import hooks
from .observe.models import count_pipeline_ranks, find_engine
from .observe.sharded import count_sharers as count_sharded_sharers
from .observe.sharded import find_kind, find_sharded_roots
from .observe.steps import list_parameters
from .observe.unwrapped import count_sharers, find_trouble
from .plain_models import PlainModels
from .rank_process import RankProcess

STEPS_WITHOUT_MODEL = 50
"""Optimizer steps after which a script is taken to train otherwise: waiting for its end could take days."""

Trouble = Tuple[str, Dict[str, object]]


class ModelSearch:
    """Sharded ones of any number of ranks, and plain ones of a job of one rank or of a diagnosis."""

    def __init__(self, process: RankProcess) -> None:
        self._process = process
        self._plain: Optional[PlainModels] = None
        if process.environment.world_size == 1 or process.environment.looks_only:
            self._plain = PlainModels(process.models, process.environment.looks_only)

    def look(self, optimizer: Any) -> bool:
        """Before an optimizer's step: whether models have come."""
        process, models = self._process, self._process.models
        is_new = not process.watch.knows(optimizer)
        roots = []
        if is_new:
            if process.watch.optimizer_steps == 0:
                process.recorder.exchanges = 0  # what was sent before is no part of the training
            known = models.list_known_sharded()
            roots = [root for root in find_sharded_roots(optimizer) if root not in known]
            for root in roots:
                hooks.watch_sharded(root)
                models.add_sharded(root)
                process.samples.sharers = max(process.samples.sharers, count_sharded_sharers(root))
        if is_new and not process.environment.looks_only and find_engine():
            self._plain = None  # it trains in a way of its own
        if self._plain is None or models.list_known_sharded():
            return bool(roots)
        if process.environment.world_size > 1:
            if not process.recorder.exchanges:
                return False  # each rank may train alone
            if not process.shared.by_updates:
                process.shared.by_updates = True
                process.samples.sharers = count_sharers(list_parameters(optimizer))
        return self._plain.look(optimizer)

    def has_no_meeting(self) -> bool:
        """At the first update: whether it is a pipeline, whose forwards are no moment at which all ranks could meet."""
        is_timed = self._process.environment.looks_only and not self._process.models.has_replicas
        return not is_timed and count_pipeline_ranks() > 0

    def explain_none(self) -> Optional[Trouble]:
        """After as many steps: why no model was seen to train; None where one was."""
        models, steps = self._process.models, STEPS_WITHOUT_MODEL
        if not models.has_any or (models.step == 0 and not models.list_known_sharded()):
            return self.describe_none(f"has made {steps} optimizer steps")
        if models.step == 0:
            root = next(iter(models.list_known_sharded()), None)
            return "fsdp", {"kind": find_kind(root), "steps": steps}
        return None

    def describe_none(self, when: str) -> Trouble:
        """The trouble of a script in which no model trains; `when` says since when or how long."""
        process = self._process
        steps, exchanges = process.watch.optimizer_steps, process.recorder.exchanges
        return find_trouble(when, steps, exchanges, process.environment.world_size)
