"""The lever of AMP: autocast around each model's training forward, with loss scaling for fp16, dynamic or static."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import MutableMapping
from typing import Any, Dict, List, Mapping, Optional

import torch

from ... import private_torch
from ...guard import guarded
from ...observe.steps import list_parameters
from ..lever import Evidence, Lever, Training, read_switch
from ..reduction.gradient_merge import explain_no_gate
from ..reduction.reduction_hook import DTYPES

FIRST_SCALE = 32768.0
"""Paddle's own init_loss_scaling."""
STEPS_TO_GROW = 2000
"""Steps without overflow after which the scale doubles; it halves with every overflow (GradScaler's own numbers)."""
DYNAMIC = "amp_dynamic_loss_scaling"
FIRST = "amp_init_loss_scaling"


class MixedPrecision(Lever):
    """Autocast in force for training forwards only.

    The model's outputs come back in float32, so the script's loss is computed as before. In fp16 the loss is multiplied
    in the backward pass only: gradients are divided again before anybody sees them, so clipping works, and a step whose
    gradients overflowed is not made. All ranks skip the same ones, because reduction spreads an overflow to all.
    fp16 begins with the second step after a switch; its scale is kept from segment to segment of one race.
    Not covered: gradients of tensors outside the models and optimizers, which stay multiplied in fp16.
    """

    knobs = ("amp", "amp_dtype", DYNAMIC, FIRST)
    changes_training = knobs
    serves_plain = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._values: Mapping[str, Any] = {}
        self._rejected: Dict[str, str] = {}
        self._unsupported: Dict[str, str] = {}
        self._usual = "bf16"
        self._format = self._usual
        self._is_under_way = False
        self._autocast: Any = None
        self._watch: Optional[_LayerWatch] = None
        self._parameters: List[torch.Tensor] = []
        self._models: List[Any] = []
        self._first_scale = self._scale = FIRST_SCALE
        self._is_dynamic = True
        self._steps_since_overflow = 0
        self._overflowed = False
        self._counts = {"forwards": 0, "steps": 0, "skipped": 0}

    def list_refusals(self, training: Training) -> Dict[str, str]:
        training.precision.settle()
        self._unsupported = find_unsupported_formats(self._device)
        sentence = self._explain_no_amp(training)
        return dict.fromkeys(self.knobs, sentence) if sentence else {}

    def observe(self, training: Training) -> Dict[str, Any]:
        own = training.precision.autocast_dtype
        if "bf16" in self._unsupported or not _computes_bf16(self._device):
            self._usual = "fp16"
        return {
            "amp": bool(own),
            "amp_dtype": {"bfloat16": "bf16", "float16": "fp16"}.get(own, self._usual),
            DYNAMIC: True,
            FIRST: FIRST_SCALE,
        }

    def _explain_no_amp(self, training: Training) -> str:
        if training.precision.scalers:
            return "The script scales its loss with a GradScaler of its own: its mixed precision is left as it is."
        if training.precision.autocast_dtype:
            return f"The script computes in {training.precision.autocast_dtype} under torch.autocast already."
        missing = private_torch.explain_missing(
            torch, (private_torch.FOREACH_MULTIPLY, private_torch.FOREACH_NORM)
        )
        if missing is not None:
            return missing
        for ddp in training.whole:
            if getattr(ddp, "mixed_precision", None) is not None:
                return "The script has DistributedDataParallel(mixed_precision=…) in force already."
            for parameter in ddp.parameters():
                if parameter.dtype in DTYPES.values():
                    kind = str(parameter.dtype).replace("torch.", "")
                    return f"The model's parameters are {kind} already."
        if len(self._unsupported) == len(DTYPES):
            return f"torch.autocast computes in no 16-bit format on this device: {self._unsupported['bf16']}."
        return explain_no_gate(training)

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._values, self._rejected = values, {}
        self.is_on = self.decides_steps = self._is_under_way = False
        self._format = values.get("amp_dtype", self._usual)
        try:
            on = read_switch(values.get("amp", False))
            if self._format not in DTYPES:
                raise ValueError(f"{self._format!r} is none of {', '.join(DTYPES)}")
            if self._format in self._unsupported:
                raise ValueError(
                    f"autocast cannot compute in {self._format} here ({self._unsupported[self._format]})"
                )
            self._is_dynamic = read_switch(values.get(DYNAMIC, True))
            first = read_scale(values.get(FIRST, FIRST_SCALE))
            if first != self._first_scale:
                self._first_scale = self._scale = first
            self.is_on, self.decides_steps = on, on and self._format == "fp16"
        except ValueError as error:
            self._rejected = {
                knob: f"AMP was not switched on: {error}." for knob in self.knobs if knob in values
            }
        self._parameters = list_trained(training) if self.decides_steps else []
        self._models = [*training.whole]
        self._steps_since_overflow, self._overflowed = 0, False
        self._watch = _LayerWatch(training, DTYPES[self._format]) if self.is_on else None
        # A step that began before the switch does not ask the scaler whether it may be made, and may not overflow.
        self._is_under_way = not self.decides_steps
        self.begin_timing()

    def begin_race(self) -> None:
        self._first_scale = self._scale = FIRST_SCALE

    def describe_in_force(self, chosen: Mapping[str, Any]) -> Any:
        return [self._format, self._is_dynamic, self._first_scale] if self.is_on else None

    def before_forward(self, ddp: Any) -> None:
        self._leave()
        if not self._is_under_way:
            return
        if self.decides_steps and not any(ddp is known for known in self._models):
            # Another model came in the middle of a step: what its loss counts is to be divided again, too.
            self._models.append(ddp)
            self._parameters += ddp.parameters()
        self._autocast = torch.autocast(self._device.type, dtype=DTYPES[self._format])
        self._autocast.__enter__()
        self._counts["forwards"] += 1
        if self._watch is not None:
            self._watch.begin()

    def drop_forward(self) -> None:
        self._leave()

    def convert_output(self, output: Any) -> Any:
        if self._autocast is None:
            return output
        self._leave()
        if self._watch is not None:
            self._watch.end(output)
        return to_float32(output, DTYPES[self._format])

    def _leave(self) -> None:
        # A forward of a class of the script's own that failed calls no hook: its autocast is left before the next one.
        if self._autocast is not None:
            self._autocast.__exit__(None, None, None)
            self._autocast = None

    def before_backward(self) -> float:
        if not self.decides_steps or not self._is_under_way:
            return 1.0
        # Gradients that are there already (accumulation) are multiplied too, and divided with the new ones. Scales are
        # powers of two, so nothing is rounded.
        self._multiply_gradients(self._scale)
        return self._scale

    def after_backward(self) -> None:
        if self.decides_steps and self._is_under_way:
            self._multiply_gradients(1.0 / self._scale)

    def _multiply_gradients(self, factor: float) -> None:
        with torch.no_grad():
            gradients = [p.grad for p in self._parameters if p.grad is not None]
            dense = [gradient for gradient in gradients if not gradient.is_sparse]
            if dense:
                private_torch.FOREACH_MULTIPLY.of(torch)(dense, factor)
            for gradient in gradients:
                if gradient.is_sparse:
                    gradient.mul_(factor)

    def may_step(self, optimizer: Any) -> bool:
        if not self._is_under_way:
            return True
        self._counts["steps"] += 1
        if are_finite([parameter.grad for parameter in list_parameters(optimizer)]):
            return True
        self._overflowed = True
        self._counts["skipped"] += 1
        return False

    def end_step(self, training: Training) -> None:
        self._is_under_way = True
        if not self._is_dynamic:
            self._overflowed = False
            return
        if self._overflowed:
            self._scale, self._steps_since_overflow, self._overflowed = max(1.0, self._scale / 2), 0, False
            return
        self._steps_since_overflow += 1
        if self._steps_since_overflow == STEPS_TO_GROW:
            self._scale, self._steps_since_overflow = self._scale * 2, 0

    def end_segment(self, training: Training) -> None:
        self._leave()
        self.is_on = self.decides_steps = False
        self._parameters, self._models, self._watch = [], [], None

    def begin_timing(self) -> None:
        self._counts = {"forwards": 0, "steps": 0, "skipped": 0}

    def prove(self) -> Evidence:
        evidence = Evidence(not_consumed=dict(self._rejected))
        for knob in [knob for knob in self.knobs if knob in self._values and knob not in self._rejected]:
            if not self._values.get("amp"):
                if knob == "amp":
                    evidence.consumed[knob] = "Off, like the baseline: no autocast."
                elif knob in (DYNAMIC, FIRST):
                    evidence.not_consumed[knob] = "amp is off, so no loss is scaled."
                else:
                    evidence.not_consumed[knob] = "amp is off, so nothing is computed in 16 bits."
            elif knob in (DYNAMIC, FIRST) and self._format != "fp16":
                evidence.not_consumed[knob] = "bf16 has float32's range: its loss is not scaled."
            elif self._watch is None or not self._counts["forwards"] or not self._watch.found:
                evidence.not_consumed[knob] = (
                    f"Autocast was in force, but no layer computed in {self._format}: none does what autocast covers."
                )
            else:
                evidence.consumed[knob] = self._describe(self._watch)
        return evidence

    def _describe(self, watch: "_LayerWatch") -> str:
        sentence = f"{self._counts['forwards']} forwards under autocast; {watch.describe()}."
        if self._format == "fp16":
            sentence += (
                f" {self._counts['skipped']} of {self._counts['steps']} steps skipped for overflow, "
                f"{'' if self._is_dynamic else 'static '}loss scale {self._scale:g}."
            )
        return sentence


def read_scale(value: Any) -> float:
    """A power of two of at least 1, or ValueError with a sentence."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or value < 1 or math.frexp(value)[0] != 0.5:
        raise ValueError(f"{FIRST} is {value!r}: give a power of two, e.g. 1024, so that nothing is rounded")
    return float(value)


class _LayerWatch:
    """Looks at one forward: which layers with parameters computed in the wanted format."""

    def __init__(self, training: Training, dtype: torch.dtype) -> None:
        self._layers = [
            module
            for model in training.whole
            for module in model.modules()
            if next(module.parameters(recurse=False), None) is not None
        ]
        self._models = training.inner
        self._dtype = dtype
        self._compiled: List[Any] = []
        self._handles: List[Any] = []
        self._is_done = False
        self._output_was_16_bit = False
        self._seen: Dict[int, bool] = {}

    @property
    def found(self) -> bool:
        return self._output_was_16_bit or any(self._seen.values())

    def begin(self) -> None:
        if not self._is_done and not self._handles:
            self._handles = [layer.register_forward_hook(guarded(self._note)) for layer in self._layers]
            # Compiled code calls no hooks: this one forward runs as it was written.
            self._compiled = [
                model.__dict__.pop(private_torch.COMPILED_CALL.name, None) for model in self._models
            ]

    def _note(self, layer: Any, _args: Any, output: Any) -> None:
        first = output[0] if isinstance(output, (tuple, list)) and output else output
        self._seen[id(layer)] = isinstance(first, torch.Tensor) and first.dtype is self._dtype

    def end(self, output: Any) -> None:
        if self._handles:
            self._is_done = True
            self._output_was_16_bit = isinstance(output, torch.Tensor) and output.dtype is self._dtype
            for handle in self._handles:
                handle.remove()
            self._handles = []
            for model, compiled in zip(self._models, self._compiled):
                if compiled is not None:
                    private_torch.COMPILED_CALL.set(model, compiled)

    def describe(self) -> str:
        kind = str(self._dtype).replace("torch.", "")
        if not any(self._seen.values()):
            return f"the model's output was {kind}"
        return f"{sum(self._seen.values())} of {len(self._layers)} layers gave {kind}"


def list_trained(training: Training) -> List[torch.Tensor]:
    """Every parameter of the models and of the optimizers, once."""
    found: Dict[int, torch.Tensor] = {}
    for model in training.whole:
        found.update((id(parameter), parameter) for parameter in model.parameters())
    for optimizer in training.all_optimizers:
        found.update((id(parameter), parameter) for parameter in list_parameters(optimizer))
    return list(found.values())


def are_finite(gradients: List[Optional[torch.Tensor]]) -> bool:
    """Whether no gradient holds an infinity or NaN; one transfer from the device for all of them."""
    with torch.no_grad():
        dense = [
            private_torch.SPARSE_VALUES.of(g)() if g.is_sparse else g for g in gradients if g is not None
        ]
        if not dense:
            return True
        norms = private_torch.FOREACH_NORM.of(torch)(dense)
        device = norms[0].device
        return bool(torch.isfinite(torch.stack([norm.to(device) for norm in norms])).all())


def to_float32(value: Any, dtype: torch.dtype) -> Any:
    """`value` with every tensor of that type in float32; containers of other kinds stay what they are."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype is dtype else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_float32(item, dtype) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(to_float32(item, dtype) for item in value)
    if isinstance(value, MutableMapping):
        converted = copy.copy(value)
        for key, item in value.items():
            converted[key] = to_float32(item, dtype)
        return converted
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        replaced = copy.copy(value)
        for entry in dataclasses.fields(value):
            object.__setattr__(replaced, entry.name, to_float32(getattr(value, entry.name), dtype))
        return replaced
    return value


def find_unsupported_formats(device: torch.device) -> Dict[str, str]:
    """The 16-bit formats that autocast does not compute in on this device, each with what torch says."""
    unsupported: Dict[str, str] = {}
    for name, dtype in DTYPES.items():
        try:
            ones = torch.ones(4, 4, device=device)
            with torch.autocast(device.type, dtype=dtype):
                found = (ones @ ones).dtype
            if found is not dtype:
                unsupported[name] = f"a product under autocast is {str(found).replace('torch.', '')}"
        except RuntimeError as error:
            unsupported[name] = str(error).splitlines()[0]
    return unsupported


def _computes_bf16(device: torch.device) -> bool:
    """Older GPUs emulate bf16, slowly."""
    return str(device.type) != "cuda" or bool(torch.cuda.get_device_capability(device) >= (8, 0))
