"""The models that train: wrapped, sharded or plain, when each last ran, and which have just come."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any, Dict, List, Tuple

from torch.nn.parallel import DistributedDataParallel

from ..backends import is_alive
from ..guard import guarded
from ..untraced import untraced
from .own_lines import find_own_line, shorten
from .steps import list_parameters
from .tensors import find_tensors, look_past

RECENT_STEPS = 4
"""A model that ran no training forward for this many steps does not train: the script may have replaced it."""


def trains(model: Any) -> bool:
    """Whether it, or what it only wraps, is in training mode: Lightning sets a wrapper to eval mode for a validation,
    and afterwards only what is inside back."""
    if model.training:
        return True
    parts = [*model.children()]
    return len(parts) == 1 and parts[0].training


class Models:
    """Holds none of them alive."""

    def __init__(self) -> None:
        self._replicas: List[Any] = []
        self._lines: Dict[int, str] = {}
        """By identity, where the script wrapped each."""
        self.has_replicas = False
        """Whether the script has ever wrapped one."""
        self._sharded: List[Any] = []
        self._plain: List[Any] = []
        """Those that nothing wraps or shards, of a job of one rank."""
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
        self.has_replicas = True
        self._lines[id(ddp)] = shorten(find_own_line(sys._getframe(1)))
        self._replicas.append(self._refer_to(ddp))

    def find_line(self, ddp: Any) -> str:
        """`train.py:88`, where the script has wrapped it; "" where nothing tells."""
        return self._lines.get(id(ddp), "")

    def _refer_to(self, model: Any) -> Any:
        identity = id(model)

        def forget(_: Any) -> None:
            self.last_forward.pop(identity, None)
            self._awaited.pop(identity, None)
            self._lines.pop(identity, None)

        return weakref.ref(model, forget)

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

    def add_plain(self, root: Any) -> None:
        """What may be called as a whole."""
        self._plain.append(self._refer_to(root))

    def drop_plain(self, root: Any) -> None:
        """Its parts are called instead."""
        self._plain = [known for known in self._plain if known() is not root]

    @property
    def has_any(self) -> bool:
        return bool(self._replicas or self._sharded or self._plain)

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

    def list_plain(self) -> List[Any]:
        """The plain models that train now, in the order of their optimizers' parameters."""
        return self._list_recent(self._plain)

    def list_training(self) -> List[Any]:
        """All that train now."""
        return [*self.list_replicas(), *self.list_sharded(), *self.list_plain()]

    def list_known_sharded(self) -> List[Any]:
        """All that still live, whether they train or not."""
        return _list_live(self._sharded)

    def list_known(self) -> List[Any]:
        """Every model that still lives."""
        return _list_live([*self._replicas, *self._sharded, *self._plain])

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
        roots = self._sharded or self._plain
        root = roots[-1]() if roots else None
        return root is not None and not trains(root)

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


def count_pipeline_ranks() -> int:
    """Ranks of the pipeline of which torch's stages live in this process; 0 without. Walks all objects where torch's
    pipelines were imported."""
    if PIPELINES not in sys.modules:
        return 0
    stages = (item for item in gc.get_objects() if type(item).__module__ == PIPELINES)
    return max((stage.group_size for stage in stages if hasattr(stage, "submod")), default=0)


def find_engine() -> str:
    """The engine that lives in this process, "" for none. Walks all objects where one was imported."""
    for (module, name), sentence in ENGINES.items():
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and any(issubclass(type(item), kind) for item in gc.get_objects()):
            return sentence
    return ""
