"""What a step of the script computes, is given and changes, weighed in steps that are not timed.

For programs that are held against each other: seconds say nothing where one of them does less. What the script computes
keeps every bit.
"""

from __future__ import annotations

import statistics
from typing import Any, Dict, List, Mapping, Optional, Sequence

import torch

from ..calibrating.ceiling import OperationCount, explain_no_count
from ..levers.events import StepListener
from ..link.measured import StepWork
from ..observe.recorder import Recorder, StepMarks
from ..observe.tensors import find_tensors
from .agreement import Bits, find_apart, sum_each
from .beside import BesideCount
from .likeness import count_repeated, measure_variety, sketch
from .parts import RankParts

WEIGHED_STEPS = 4
_LOOKED_AT = 1024
"""Numbers of a parameter that are looked at one by one."""
_SEEDED = torch.Tag.nondeterministic_seeded


class ForwardCount(OperationCount):
    """Of what is computed outside of backward passes, where checkpointing computes again what another program keeps."""

    def __init__(self, recorder: Recorder, beside: BesideCount) -> None:
        super().__init__()
        self._recorder, self._beside = recorder, beside
        self.in_forward = False
        self.random = 0.0
        """Random numbers that forward passes drew."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._recorder.is_in_backward:
            return func(*args, **(kwargs or {}))
        result = super().__torch_dispatch__(func, types, args, kwargs)
        # Attention has the tag whether or not it drops anything.
        if self.in_forward and _SEEDED in func.tags and "attention" not in str(func):
            drawn = next(find_tensors(result), None)
            self.random += drawn.numel() if drawn is not None else 0
        if not self.in_forward:
            self._beside.note(str(func.overloadpacket), args, kwargs, result)
        return result


class Weighing(StepListener):
    """One rank's part, from the first steps of a race to the last of `WEIGHED_STEPS` after the timed ones."""

    def __init__(self, parts: RankParts) -> None:
        self._parts = parts
        self._count: Optional[ForwardCount] = None
        self._refusal = ""
        self._parameters: List[Any] = []
        self._sums: List[int] = []
        self._before: List[torch.Tensor] = []
        """Some numbers of each parameter as the step began."""
        self._has_gradient: List[bool] = []
        self._reached: List[float] = []
        """Of each parameter the share of its numbers whose gradient is not 0."""
        self._forwards = self._passes = self._steps = 0
        self._with_gradient: List[float] = []
        self._moved: List[float] = []
        self._beside = BesideCount((), ())
        self._read: List[float] = []
        self._clipped: List[float] = []
        self._kept: List[float] = []
        self._numbers_with_gradient: List[float] = []
        self._numbers_moved: List[float] = []
        self._operations: List[float] = []
        """Since the first of the weighed steps, at the end of each."""
        self._batches: List[str] = []

    def look_at_batches(self, looks: bool) -> None:
        """Whether what the model is given is noted from here on."""
        self._parts.process.samples.on_given = self._note_given if looks else None

    def begin(self) -> None:
        """At the first boundary after the timed steps."""
        training = self._parts.gather_training()
        own = (p for top in (*training.inner, *training.sharded) for p in top.parameters())
        self._parameters = list({id(parameter): parameter for parameter in own}.values())
        self._refusal = explain_no_count(training, self._parts.device)
        if not self._refusal:
            self._beside = BesideCount(self._parameters, training.list_modules())
            self._count = ForwardCount(self._parts.recorder, self._beside)
        self.look_at_batches(True)
        self._begin_step()

    def end_step(self, _step: StepMarks) -> bool:
        """At each later boundary; whether the step that ends there was the last one."""
        if self._count is not None:
            self._count.__exit__(None, None, None)
            self._operations.append(sum(self._count.by_format.values()))
            beside = self._beside
            self._read.append(self._share(beside.read))
            self._clipped.append(self._share([*map(min, beside.read, beside.scaled)]))
            self._kept.append(self._share(beside.find_kept(self._parts.gather_training().all_optimizers)))
        self._steps += 1
        changed = [one != other for one, other in zip(self._sums, sum_each(self._parameters))]
        self._moved.append(self._share(changed))
        self._with_gradient.append(self._share(self._has_gradient))
        apart = [(old != new).float() for old, new in zip(self._before, map(_take_some, self._parameters))]
        self._numbers_moved.append(self._share([float(one.mean()) if one.numel() else 0.0 for one in apart]))
        self._numbers_with_gradient.append(self._share(self._reached))
        if self._steps == WEIGHED_STEPS:
            self.look_at_batches(False)
            return True
        self._begin_step()
        return False

    def _begin_step(self) -> None:
        self._sums = sum_each(self._parameters)
        self._before = [_take_some(parameter) for parameter in self._parameters]
        self._has_gradient = [False] * len(self._parameters)
        self._reached = [0.0] * len(self._parameters)
        if self._count is not None:
            self._beside.begin()
            self._count.__enter__()

    def before_forward(self, _ddp: Any) -> None:
        self._forwards += 1
        if self._count is not None:
            self._count.in_forward = True

    def after_forward(self, _ddp: Any) -> None:
        self.drop_forward()

    def drop_forward(self) -> None:
        if self._count is not None:
            self._count.in_forward = False

    def before_backward(self) -> float:
        self._passes += 1
        return 1.0

    def after_backward(self) -> None:
        self._beside.note_gradients(are_there=True)

    def before_step(self) -> None:
        self._beside.note_gradients(are_there=False)
        with torch.no_grad():
            for place, parameter in enumerate(self._parameters):
                if _is_other_than_0(parameter.grad):
                    self._has_gradient[place] = True
                    self._reached[place] = max(self._reached[place], _count_other_than_0(parameter.grad))

    def _share(self, shares: Sequence[float]) -> float:
        """Of all numbers of the parameters, where `shares` are those of each parameter."""
        sizes = [int(parameter.numel()) for parameter in self._parameters]
        return sum(size * share for size, share in zip(sizes, shares)) / max(1, sum(sizes))

    def _note_given(self, args: Any, kwargs: Any) -> None:
        self._batches.append(sketch([args, kwargs]))

    def read(self) -> Optional[Dict[str, Any]]:
        """Plain JSON; None where the script ended before all was weighed."""
        if self._steps < WEIGHED_STEPS:
            return None
        count = self._count
        refusal, formats = self._refusal, {}
        if count is not None:
            refusal = (
                f"torch's counter of operations has no formula for {count.missed}" if count.missed else ""
            )
            formats = {} if refusal else count.by_format
        return {
            "formats": {str(dtype).replace("torch.", ""): counted for dtype, counted in formats.items()},
            "operations": [
                after - before for before, after in zip([0.0, *self._operations], self._operations)
            ],
            "refusal": refusal,
            "random": count.random if count is not None else 0.0,
            "passes": self._passes / max(1, self._forwards),
            "with_gradient": statistics.fmean(self._with_gradient),
            "moved": statistics.fmean(self._moved),
            "numbers_with_gradient": statistics.fmean(self._numbers_with_gradient),
            "numbers_moved": statistics.fmean(self._numbers_moved),
            "gradients_read": statistics.fmean(self._read or [0.0]),
            "clipped": statistics.fmean(self._clipped or [0.0]),
            "kept_beside": statistics.fmean(self._kept or [0.0]),
            "variety": measure_variety(self._batches),
            "batches": self._batches,
        }


def _is_other_than_0(gradient: Optional[torch.Tensor]) -> bool:
    if gradient is None:
        return False
    own = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return bool((own.coalesce().values() if own.is_sparse else own).any())


def _count_other_than_0(gradient: torch.Tensor) -> float:
    own = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    if own.is_sparse:
        return float(own.coalesce().values().count_nonzero()) / max(1, int(own.numel()))
    some = _take_some(own)
    return float(some.count_nonzero()) / max(1, int(some.numel()))


def _take_some(tensor: torch.Tensor) -> torch.Tensor:
    """At most `_LOOKED_AT` of its numbers, drawn by dice that always fall alike: no regular choice avoids them."""
    own = (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach().reshape(-1)
    dice = torch.Generator().manual_seed(0)
    places = torch.randint(max(1, own.numel()), (min(own.numel(), _LOOKED_AT),), generator=dice)
    return own[places.to(own.device)]


def merge_work(ranks: Sequence[Optional[Mapping[str, Any]]], bits: Sequence[Bits]) -> Optional[StepWork]:
    """`ranks` in order, with the checksums of their parameters after the race."""
    known = [rank for rank in ranks if rank is not None]
    if not known or len(known) < len(ranks):
        return None
    formats: Dict[str, float] = {}
    for rank in known:
        for name, counted in rank["formats"].items():
            formats[name] = formats.get(name, 0.0) + counted
    batches = [batch for rank in known for batch in rank["batches"]]
    refusal = next(filter(None, (rank["refusal"] for rank in known)), "")
    return StepWork(
        operations=() if refusal else tuple(map(sum, zip(*(rank["operations"] for rank in known)))),
        number_format="" if refusal else max(formats, key=lambda name: formats[name], default=""),
        refusal=refusal,
        random_numbers=sum(rank["random"] for rank in known) / WEIGHED_STEPS,
        backward_passes=min(rank["passes"] for rank in known),
        with_gradient=min(rank["with_gradient"] for rank in known),
        moved=min(rank["moved"] for rank in known),
        numbers_with_gradient=min(rank["numbers_with_gradient"] for rank in known),
        numbers_moved=min(rank["numbers_moved"] for rank in known),
        repeated=count_repeated(batches) / len(batches) if batches else 0.0,
        variety=min(rank["variety"] for rank in known),
        gradients_read=min(rank["gradients_read"] for rank in known),
        clipped=min(rank["clipped"] for rank in known),
        kept_beside=min(rank["kept_beside"] for rank in known),
        ranks_apart=bool(find_apart(bits)),
    )
