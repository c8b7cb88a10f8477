"""The lever of how fully_shard reduces gradients: number format, communicator, buffers and their memory."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

import torch

from ...observe.sharded import FULLY_SHARD, explain_unknown_groups, find_kind, list_all_groups
from ..lever import Evidence, Lever, Training
from . import scatter_path, wire_format
from .scatter_path import ScatterPath
from .scatter_watch import ScatterWatch
from .wire_format import WireFormat


class GradientScatter(Lever):
    """The first backward after a switch is watched, and proves what was in force."""

    knobs = (*wire_format.KNOBS, *scatter_path.KNOBS)
    changes_training = wire_format.KNOBS
    serves_sharded = True
    serves_replicas = False

    def __init__(self, device: torch.device) -> None:
        self._wire = WireFormat(device)
        self._path = ScatterPath(device)
        self._groups: List[Any] = []
        self._chosen: List[str] = []
        self._rejected: Dict[str, str] = {}
        self._watch: Optional[ScatterWatch] = None
        self._is_watching = False

    def list_refusals(self, training: Training) -> Dict[str, str]:
        sentence = _explain_no_scatter(training)
        if sentence is not None:
            return dict.fromkeys(self.knobs, sentence)
        groups = list_all_groups(training.sharded)
        refusals = self._wire.list_refusals(groups, training.sharded)
        refusals.update(self._path.list_refusals(groups, training.sharded))
        return refusals

    def observe(self, training: Training) -> Dict[str, Any]:
        if _explain_no_scatter(training) is not None:
            return {}
        self._groups = list_all_groups(training.sharded)
        return {**self._wire.observe(self._groups), **self._path.observe(self._groups)}

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._stop_watching()
        self._rejected = self._wire.switch(values, training.sharded)
        self._rejected.update(self._path.switch(values, training.sharded))
        self._chosen = [knob for knob in values if knob not in self._rejected]
        self.is_on = bool(self._chosen)
        self.least_warm_up = 2 if self._path.makes_groups else 0
        self.begin_timing()

    def before_forward(self, ddp: Any) -> None:
        if self._watch is None:
            self._watch = ScatterWatch(self._groups)
            self._watch.start()
            self._is_watching = True

    def after_backward(self) -> None:
        # Backwards that only add gradients up reduce none of them.
        if self._watch is not None and self._watch.formats:
            self._stop_watching()

    def end_step(self, training: Training) -> None:
        self._stop_watching()

    def end_segment(self, training: Training) -> None:
        self._stop_watching()

    def _stop_watching(self) -> None:
        if self._watch is not None and self._is_watching:
            self._watch.stop()
            self._is_watching = False

    def begin_timing(self) -> None:
        self._stop_watching()
        self._watch = None

    def prove(self) -> Evidence:
        evidence = Evidence(not_consumed=dict(self._rejected))
        for knob in self._chosen:
            if self._watch is None or not self._watch.formats:
                evidence.not_consumed[knob] = "No gradient was reduced in the step that was watched."
                continue
            part: Any = self._wire if knob in wire_format.KNOBS else self._path
            proved, sentence = part.judge(knob, self._watch)
            (evidence.consumed if proved else evidence.not_consumed)[knob] = sentence
            if proved and part.is_as_before(knob):
                evidence.no_effect[knob] = "The value equals the script's own."
        return evidence


def _explain_no_scatter(training: Training) -> Optional[str]:
    if any(find_kind(root) != FULLY_SHARD for root in training.sharded):
        return (
            "FullyShardedDataParallel fixes how it reduces gradients as the model is built. Set mixed_precision by "
            "hand, or shard with fully_shard, which can change it between steps."
        )
    missing = next(filter(None, map(explain_unknown_groups, training.sharded)), None)
    if missing is not None:
        return missing
    groups = list_all_groups(training.sharded)
    if not groups:
        return "fully_shard found no parameters to shard in this model."
    if any(group.mesh_info.shard_mesh_dim is None for group in groups):
        return "The script replicates some layers instead of sharding them."
    return None
