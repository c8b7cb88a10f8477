"""The models that train: which the script has wrapped or sharded, when each last ran, and which have just come."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any, Dict, List, Tuple

from torch.nn.parallel import DistributedDataParallel

from ..backends import is_alive
from ..guard import guarded
from ..untraced import untraced
from .steps import list_parameters
from .tensors import find_tensors, look_past

RECENT_STEPS = 4
"""A model that ran no training forward for this many steps does not train: the script may have replaced it."""


class Models:
    """Holds none of them alive."""

    def __init__(self) -> None:
        self._replicas: List[Any] = []
        self.has_replicas = False
        """Whether the script has ever wrapped one."""
        self._sharded: List[Any] = []
        self.last_forward: Dict[int, int] = {}
        """The step of the last training forward of each that lives, by its identity."""
        self._awaited: Dict[int, List[Tuple[Any, Any]]] = {}
        """By identity, the outputs of a last forward that no backward has come to: each one's hook and tensor."""
        self.entered: Any = None
        """The model whose training forward begins at this moment."""
        self.have_run = False
        """Whether a training forward was ever seen."""
        self.step = 0
        """The one under way."""
        self.have_come = False
        """Whether a model or an optimizer has come that the strategy in force was not put on."""

    def add_replica(self, ddp: Any) -> None:
        identity = id(ddp)

        def forget(_: Any) -> None:
            self.last_forward.pop(identity, None)
            self._awaited.pop(identity, None)

        self.has_replicas = True
        self._replicas.append(weakref.ref(ddp, forget))

    def meet(self, model: Any, is_late: bool) -> None:
        """Its first training forward comes: a copy of a wrapped model was never wrapped."""
        self.have_run, self.have_come = True, is_late
        if isinstance(model, DistributedDataParallel) and not any(
            known() is model for known in self._replicas
        ):
            self.add_replica(model)

    @untraced
    def await_backward(self, ddp: Any, output: Any) -> Any:
        """After a training forward of a wrapped model: what the script gets from it."""
        if not ddp.__dict__.get("require_backward_grad_sync", False):
            return output
        identity = id(ddp)
        outputs: List[Tuple[Any, Any]] = []
        for tensor in find_tensors(output):
            with look_past(tensor):
                if tensor.grad_fn is not None:

                    @guarded
                    def note(_gradient: Any) -> None:
                        self._awaited.pop(identity, None)

                    tensor.register_hook(note)
                    # Only the tensor's graph holds the hook: once that is dropped, no backward can come.
                    outputs.append((weakref.ref(note), weakref.ref(tensor)))
        if outputs:
            self._awaited[identity] = outputs
        return output

    def list_awaited(self) -> Dict[int, List[Any]]:
        """Outputs whose backward may still come and would reduce; None for one that only its graph keeps."""
        found = {
            identity: [tensor() for hook, tensor in outputs if hook() is not None]
            for identity, outputs in self._awaited.items()
        }
        return {identity: outputs for identity, outputs in found.items() if outputs}

    def add_sharded(self, root: Any) -> None:
        self._sharded.append(weakref.ref(root))
        self.last_forward[id(root)] = self.step

    @property
    def has_any(self) -> bool:
        return bool(self._replicas or self._sharded)

    @property
    def has_unmet(self) -> bool:
        """Whether one was wrapped that has not run yet."""
        return any(id(ddp) not in self.last_forward for ddp in _list_live(self._replicas))

    def list_replicas(self) -> List[Any]:
        """The DDP models that train now, in the order in which they were built: the same list on every rank. One whose
        process group was destroyed trains no more."""
        recent = self._list_recent(self._replicas)
        return [ddp for ddp in recent if is_alive(getattr(ddp, "process_group", None))]

    def list_sharded(self) -> List[Any]:
        """The outermost sharded modules that train now, in the order of their optimizers' parameters."""
        return self._list_recent(self._sharded)

    def list_known_sharded(self) -> List[Any]:
        """All that still live, whether they train or not."""
        return _list_live(self._sharded)

    def list_known(self) -> List[Any]:
        """Every model that still lives."""
        return [*_list_live(self._replicas), *_list_live(self._sharded)]

    @untraced
    def are_strange_to(self, optimizer: Any) -> bool:
        """Whether there are models, and an optimizer holds no parameter of any."""
        own = {id(parameter) for model in self.list_known() for parameter in model.parameters()}
        return bool(own) and not any(id(parameter) in own for parameter in list_parameters(optimizer))

    def take_newcomers(self) -> bool:
        """Whether any have come since this was last asked."""
        came, self.have_come = self.have_come, False
        return came

    def are_evaluated(self) -> bool:
        """Whether the latest is in eval mode."""
        if self._replicas:
            ddp = self._replicas[-1]()
            return ddp is not None and not ddp.module.training
        root = self._sharded[-1]() if self._sharded else None
        return root is not None and not root.training

    def _list_recent(self, references: List[Any]) -> List[Any]:
        oldest = self.step - RECENT_STEPS
        return [
            model
            for model in _list_live(references)
            if self.last_forward.get(id(model), oldest - 1) >= oldest
        ]


def _list_live(references: List[Any]) -> List[Any]:
    return [model for model in (reference() for reference in references) if model is not None]


ENGINES = {
    ("deepspeed.runtime.engine", "DeepSpeedEngine"): "DeepSpeed's engine",
    ("megatron.core.distributed.distributed_data_parallel", "DistributedDataParallel"): (
        "Megatron's own DistributedDataParallel"
    ),
    ("colossalai.booster.booster", "Booster"): "ColossalAI's booster",
    ("apex.parallel.distributed", "DistributedDataParallel"): "Apex's own DistributedDataParallel",
}
"""Module and class of each, with its name in a sentence."""


PIPELINES = "torch.distributed.pipelining.stage"


def is_pipelined() -> bool:
    """Whether a stage of torch's pipelines lives in this process. Walks all objects where they were imported."""
    return PIPELINES in sys.modules and any(
        type(item).__module__ == PIPELINES and hasattr(item, "submod") for item in gc.get_objects()
    )


def find_engine() -> str:
    """The engine that lives in this process, "" for none. Walks all objects where one was imported."""
    for (module, name), sentence in ENGINES.items():
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and any(issubclass(type(item), kind) for item in gc.get_objects()):
            return sentence
    return ""
