"""How DeepSpeed's engine reduces gradients in ZeRO's stages 1 and 2: size of a piece, number format, overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch

from ...observe import deepspeed
from ...observe.sharded import list_trained
from ..lever import Evidence, Lever, Training, read_switch
from ..reduction.reduction_hook import DTYPES, find_unsupported_formats
from . import wire_format

MIB = 2**20
SIZE = "fuse_grad_size_in_MB"
OVERLAP = "sharding_overlap"


@dataclass(frozen=True)
class _Own:
    """A ZeRO optimizer with the script's own settings."""

    optimizer: Any
    numbers: int
    """Of all its gradients."""
    bytes_per_number: int
    bucket_numbers: int
    format: torch.dtype
    overlaps: bool

    def count(self, megabytes: Optional[float]) -> int:
        """Numbers in a piece of this size; None: the script's own."""
        if megabytes is None:
            return self.bucket_numbers
        return max(1, round(megabytes * MIB / self.bytes_per_number))


class EngineReduction(Lever):
    """DeepSpeed reads its settings before each gradient, and makes its buffers anew with each backward."""

    knobs = (SIZE, OVERLAP, *wire_format.KNOBS)
    changes_training = wire_format.KNOBS
    serves_engines = True
    serves_replicas = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own: List[_Own] = []
        self._unsupported: Dict[str, str] = {}
        self._size: Optional[float] = None
        self._format: Optional[str] = None
        self._overlap: Optional[bool] = None
        self._chosen: List[str] = []
        self._rejected: Dict[str, str] = {}
        self._watches: List[_Watch] = []
        self._is_watching = False

    def list_refusals(self, training: Training) -> Dict[str, str]:
        sentence = _explain_no_buckets(training)
        if sentence is not None:
            return dict.fromkeys(self.knobs, sentence)
        group = deepspeed.find_group(training.sharded[0])
        self._unsupported = find_unsupported_formats(group, self._device)
        sentence = next(filter(None, map(deepspeed.explain_no_format, training.sharded)), None)
        if sentence is None and len(self._unsupported) == len(DTYPES):
            sentence = f"The backend reduces no 16-bit format: {self._unsupported['fp16']}"
        refusals = {} if sentence is None else dict.fromkeys(wire_format.KNOBS, sentence)
        sentence = next(filter(None, map(deepspeed.explain_no_overlap, training.sharded)), None)
        return refusals if sentence is None else {**refusals, OVERLAP: sentence}

    def observe(self, training: Training) -> Dict[str, Any]:
        if _explain_no_buckets(training) is not None:
            return {}
        self._own = []
        for engine in training.sharded:
            parameters, optimizer = list_trained(engine), engine.optimizer
            numbers = sum(parameter.numel() for parameter in parameters)
            size, kind = int(optimizer.reduce_bucket_size), optimizer.communication_data_type
            overlaps = bool(getattr(optimizer, "overlap_comm", False))
            self._own.append(_Own(optimizer, numbers, parameters[0].element_size(), size, kind, overlaps))
        largest = max(self._own, key=lambda own: own.numbers)
        size_mb = largest.bucket_numbers * largest.bytes_per_number / MIB
        return {
            SIZE: size_mb,
            OVERLAP: largest.overlaps,
            "fp16_allreduce": False,
            "fp16_allreduce_dtype": "fp16",
        }

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._stop_watching()
        self._format, self._rejected = wire_format.read_format(values, self._unsupported)
        self._size, size = None, values.get(SIZE)
        if isinstance(size, (int, float)) and not isinstance(size, bool) and size > 0:
            self._size = float(size)
        elif SIZE in values:
            self._rejected[SIZE] = f"{SIZE} was not set: {size!r} is not a size in MB."
        self._overlap = None
        if OVERLAP in values:
            try:
                self._overlap = read_switch(values[OVERLAP])
            except ValueError as error:
                self._rejected[OVERLAP] = f"{OVERLAP} was not set: {error}."
        self._chosen = [knob for knob in values if knob not in self._rejected]
        for own in self._own:
            own.optimizer.reduce_bucket_size = own.count(self._size)
            own.optimizer.overlap_comm = own.overlaps if self._overlap is None else self._overlap
            self._set_format(own)
        self.is_on = bool(self._chosen)
        self.begin_timing()

    def _set_format(self, own: _Own) -> None:
        kind = own.format if self._format is None else DTYPES[self._format]
        if own.optimizer.communication_data_type != kind:
            own.optimizer.communication_data_type = kind
            # One for each number format; between steps there is nothing in it.
            (bucket,) = own.optimizer.ipg_buckets.values()
            own.optimizer.ipg_buckets = {kind: type(bucket)()}

    def before_forward(self, ddp: Any) -> None:
        if not self._watches:
            self._watches = [_Watch(own.optimizer) for own in self._own]
            self._is_watching = True

    def end_step(self, training: Training) -> None:
        # Stage 1 reduces after the backward, so that its end says nothing.
        if any(watch.pieces for watch in self._watches):
            self._stop_watching()

    def end_segment(self, training: Training) -> None:
        self._stop_watching()

    def _stop_watching(self) -> None:
        for watch in self._watches if self._is_watching else ():
            watch.stop()
        self._is_watching = False

    def begin_timing(self) -> None:
        self._stop_watching()
        self._watches = []

    def describe_in_force(self, chosen: Mapping[str, Any]) -> Any:
        return [
            [
                min(int(own.optimizer.reduce_bucket_size), own.numbers),
                str(own.optimizer.communication_data_type),
                bool(own.optimizer.overlap_comm),
            ]
            for own in self._own
        ]

    def prove(self) -> Evidence:
        evidence = Evidence(not_consumed=dict(self._rejected))
        for knob in self._chosen:
            if not any(watch.pieces for watch in self._watches):
                evidence.not_consumed[knob] = "No gradient was reduced in the step that was watched."
                continue
            judge = {SIZE: self._judge_size, OVERLAP: self._judge_overlap}.get(knob, self._judge_format)
            proved, sentence = judge()
            (evidence.consumed if proved else evidence.not_consumed)[knob] = sentence
            if proved and self._is_as_before(knob):
                evidence.no_effect[knob] = "It comes to what the script does by itself."
        return evidence

    def _judge_size(self) -> Tuple[bool, str]:
        pieces = [(own, piece) for own, watch in zip(self._own, self._watches) for piece in watch.pieces]
        # A parameter that is larger than a piece travels alone.
        within = all(piece.numbers <= own.count(self._size) or piece.parameters == 1 for own, piece in pieces)
        largest = max(piece.numbers * own.bytes_per_number for own, piece in pieces) / MIB
        many = "1 piece" if len(pieces) == 1 else f"{len(pieces)} pieces"
        return within, f"A step's gradients were reduced in {many} of up to {largest:.3g} MB."

    def _judge_overlap(self) -> Tuple[bool, str]:
        pieces = [piece for watch in self._watches for piece in watch.pieces]
        doubled = sum(piece.buffers == 2 for piece in pieces)
        sentence = f"{doubled} of {len(pieces)} pieces were collected in two buffers by turns."
        return doubled == (len(pieces) if self._overlap else 0), sentence

    def _judge_format(self) -> Tuple[bool, str]:
        kinds = [piece.format for watch in self._watches for piece in watch.pieces]
        if self._format is None:
            own = sum(kind not in DTYPES.values() for kind in kinds)
            sentence = f"{own} of {len(kinds)} pieces travelled in the script's own number format."
            return own == len(kinds), sentence
        found = kinds.count(DTYPES[self._format])
        return found == len(kinds), f"{found} of {len(kinds)} pieces travelled as {self._format}."

    def _is_as_before(self, knob: str) -> bool:
        if knob == OVERLAP:
            return all(own.overlaps == self._overlap for own in self._own)
        if knob != SIZE:
            return self._format is None
        return all(
            min(own.count(self._size), own.numbers) == min(own.bucket_numbers, own.numbers)
            for own in self._own
        )


@dataclass(frozen=True)
class _Piece:
    """Gradients that are reduced together."""

    numbers: int
    parameters: int
    format: torch.dtype
    buffers: int
    """That the engine collects gradients in: two where it collects the next piece while this one travels."""


class _Watch:
    """Stands in for the function that reduces what one ZeRO optimizer has collected."""

    def __init__(self, optimizer: Any) -> None:
        self.pieces: List[_Piece] = []
        self._optimizer = optimizer
        self._own: Callable[..., Any] = optimizer.reduce_ipg_grads
        optimizer.reduce_ipg_grads = self._reduce

    def _reduce(self, *args: Any, **kwargs: Any) -> Any:
        for kind, bucket in self._optimizer.ipg_buckets.items():
            if bucket.elements:
                buffers = len(getattr(bucket, "buffer", ()))
                self.pieces.append(_Piece(int(bucket.elements), len(bucket.params), kind, buffers))
        return self._own(*args, **kwargs)

    def stop(self) -> None:
        vars(self._optimizer).pop("reduce_ipg_grads", None)


def _explain_no_buckets(training: Training) -> Optional[str]:
    return next(filter(None, map(deepspeed.explain_no_buckets, training.sharded)), None)
