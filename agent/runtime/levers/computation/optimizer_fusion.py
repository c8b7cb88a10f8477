"""The lever of fuse_all_optimizer_ops: torch's fused or foreach implementation of each optimizer, switched in place."""

from __future__ import annotations

import sys
import weakref
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

import torch

from ...guard import guarded
from ...observe.steps import list_parameters
from ...private_torch import CHOOSE_FUSION, SCALES_ITSELF
from ..lever import Evidence, Lever, Training, read_switch

KNOB = "fuse_all_optimizer_ops"
Flags = Tuple[Optional[bool], Optional[bool]]
"""Of a parameter group: fused and foreach."""
LOOP, FOREACH, FUSED = "single_tensor", "multi_tensor", "fused"
"""torch's words for: one operator per parameter, a few for all, one for all."""

_FUSED_IN_PARTS = ("Adam", "AdamW")


class _Usual:
    """An optimizer as the script made it: its state dict describes it so, and a checkpoint stays the script's."""

    def __init__(self, optimizer: Any) -> None:
        self._flags = _read_flags(optimizer)
        self.scales_itself = bool(SCALES_ITSELF.find(optimizer, False))
        self._asked: List[Flags] = []
        self._hooks = [
            optimizer.register_state_dict_post_hook(guarded(self._describe), prepend=True),
            optimizer.register_load_state_dict_post_hook(guarded(self._follow)),
        ]

    def replace(self, optimizer: Any, flags: Flags) -> None:
        self._asked = [flags] * len(optimizer.param_groups)
        _set_flags(optimizer, self._asked)

    def restore(self, optimizer: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        _set_flags(optimizer, self._flags)
        if self.scales_itself:
            SCALES_ITSELF.set(optimizer, True)

    def _describe(self, optimizer: Any, described: Any) -> None:
        states = described["state"]
        for group, own, flags in zip(described["param_groups"], optimizer.param_groups, self._flags):
            _put_flags(group, flags)
            for number, parameter in zip(group["params"], own["params"]):
                step = states.get(number, {}).get("step")
                placed = _place_step(step, parameter, group)
                if placed is not step:
                    states[number] = {**states[number], "step": placed}

    def _follow(self, optimizer: Any) -> None:
        """The script has loaded a state dict, flags and all."""
        self._flags = _read_flags(optimizer)
        _set_flags(optimizer, self._asked)


class _Counter:
    """Stands in for one of torch.optim's implementations and counts its calls, while a strategy is in force."""

    def __init__(self, module: Any, name: str) -> None:
        self._module, self._name, self._original = module, name, getattr(module, name)
        self.calls = 0
        setattr(module, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self._original(*args, **kwargs)

    def remove(self) -> None:
        setattr(self._module, self._name, self._original)


class OptimizerFusion(Lever):
    """On: fused where torch offers it for the optimizer and the device, else foreach. Off: what torch does unasked."""

    knobs = (KNOB,)
    changes_training = knobs
    serves_plain = True
    serves_sharded = True

    def __init__(self) -> None:
        self._usual: "weakref.WeakKeyDictionary[Any, _Usual]" = weakref.WeakKeyDictionary()
        self._wanted: Optional[bool] = None
        self._chosen: Dict[str, str] = {}
        self._counters: Dict[str, _Counter] = {}
        self._evidence = Evidence()

    def list_refusals(self, training: Training) -> Dict[str, str]:
        offers = _list_offers(training)
        if not offers:
            names = ", ".join(sorted({type(optimizer).__name__ for optimizer in training.optimizers}))
            return {
                KNOB: f"torch has neither a fused nor a foreach implementation of {names} for this model."
            }
        if all(find_running(optimizer) == offer == find_unasked(optimizer) for optimizer, offer in offers):
            return {KNOB: "torch fuses these optimizers as far as it can already, without being asked."}
        return {}

    def observe(self, training: Training) -> Dict[str, Any]:
        offers = _list_offers(training)
        return {KNOB: bool(offers) and all(find_running(optimizer) == offer for optimizer, offer in offers)}

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._evidence, self._wanted = Evidence(), None
        self._restore()
        if KNOB not in values:
            return
        try:
            self._wanted = read_switch(values[KNOB])
        except ValueError as error:
            self._evidence.not_consumed[KNOB] = f"{KNOB} was not set: {error}."
            return
        for optimizer, offer in _list_offers(training):
            usual = self._usual[optimizer] = _Usual(optimizer)
            running = find_running(optimizer)
            usual.replace(optimizer, (offer == FUSED, offer == FOREACH) if self._wanted else (None, None))
            if not self._wanted and usual.scales_itself:
                SCALES_ITSELF.set(optimizer, False)
            module, function = _find_function(optimizer, find_running(optimizer))
            self._chosen[function] = f"{type(optimizer).__name__} ran as {running} before"
            if function not in self._counters:
                self._counters[function] = _Counter(module, function.rsplit(".", 1)[1])
            if running == find_running(optimizer):
                self._evidence.no_effect[KNOB] = f"{function} runs in the baseline as well."

    def _restore(self) -> None:
        for counter in self._counters.values():
            counter.remove()
        self._counters, self._chosen = {}, {}
        for optimizer, usual in list(self._usual.items()):
            usual.restore(optimizer)
        self._usual.clear()

    def begin_timing(self) -> None:
        for counter in self._counters.values():
            counter.calls = 0

    def prove(self) -> Evidence:
        for function, counter in self._counters.items():
            sentence = f"{function} ran {counter.calls} times in the timed steps ({self._chosen[function]})."
            found = self._evidence.consumed if counter.calls else self._evidence.not_consumed
            found[KNOB] = sentence
        return self._evidence


def find_running(optimizer: Any) -> str:
    """The implementation that torch takes for the optimizer's flags as they stand."""
    group = optimizer.param_groups[0]
    if group.get("fused"):
        return FUSED
    if group.get("foreach"):
        return FOREACH
    return LOOP if group.get("foreach") is False else find_unasked(optimizer)


def find_unasked(optimizer: Any) -> str:
    """What torch takes when neither flag is given."""
    choose = CHOOSE_FUSION.find_loaded()
    if choose is None or "foreach" not in optimizer.param_groups[0]:
        return LOOP
    _, foreach = choose(list_parameters(optimizer), False, use_fused=False)
    return FOREACH if foreach else LOOP


def _list_offers(training: Training) -> List[Tuple[Any, str]]:
    """The optimizers that can be switched, each with the best implementation that torch has for it here."""
    sparse = {
        id(module.weight)
        for module in training.list_modules()
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse
    }
    found = ((optimizer, _find_offer(optimizer, sparse)) for optimizer in training.optimizers)
    return [(optimizer, offer) for optimizer, offer in found if offer is not None]


def _find_offer(optimizer: Any, sparse: Set[int]) -> Optional[str]:
    group = optimizer.param_groups[0]
    ours = type(optimizer).__module__.startswith("torch.optim")
    if not ours or any(g.get("differentiable") for g in optimizer.param_groups):
        return None
    holds_sparse = any(id(parameter) in sparse for parameter in list_parameters(optimizer))
    offer = None
    if "fused" in group and not holds_sparse and _takes_fused(optimizer):
        offer = FUSED
    elif "foreach" in group and not isinstance(group["lr"], torch.Tensor):
        offer = FOREACH
    if offer is None or not all(_find_name(optimizer, way) for way in (offer, find_unasked(optimizer))):
        return None
    return offer


def _takes_fused(optimizer: Any) -> bool:
    """Asked of a second optimizer over one number of each kind: its constructor knows what is supported.

    It does not know that torch cuts up (DTensor) the fused operators of Adam and AdamW only.
    """
    if type(optimizer).__name__ not in _FUSED_IN_PARTS and any(
        hasattr(parameter, "to_local") for parameter in list_parameters(optimizer)
    ):
        return False
    kinds = {(parameter.dtype, parameter.device) for parameter in list_parameters(optimizer)}
    numbers = [torch.zeros(1, dtype=dtype, device=device, requires_grad=True) for dtype, device in kinds]
    try:
        type(optimizer)(numbers, lr=0.1, fused=True)
    except (RuntimeError, TypeError, ValueError):
        return False
    return True


def _read_flags(optimizer: Any) -> List[Flags]:
    return [(group.get("fused"), group.get("foreach")) for group in optimizer.param_groups]


def _set_flags(optimizer: Any, flags: List[Flags]) -> None:
    """Those of each parameter group, and the step counts where that implementation wants them."""
    for group, asked in zip(optimizer.param_groups, flags):
        _put_flags(group, asked)
        for parameter in group["params"]:
            step = optimizer.state.get(parameter, {}).get("step")
            placed = _place_step(step, parameter, group)
            if placed is not step:
                optimizer.state[parameter]["step"] = placed


def _put_flags(group: Dict[str, Any], flags: Flags) -> None:
    if "fused" in group:
        group["fused"] = flags[0]
    group["foreach"] = flags[1]


def _place_step(step: Any, parameter: Any, group: Mapping[str, Any]) -> Any:
    """A parameter's count of steps, where the implementation of its group's flags wants it."""
    if not isinstance(step, torch.Tensor):
        return step
    on_device = group.get("fused") or group.get("capturable")
    wide = torch.get_default_dtype() == torch.float64 and not group.get("fused")
    return step.to(
        parameter.device if on_device else torch.device("cpu"), torch.float64 if wide else torch.float32
    )


def _find_function(optimizer: Any, implementation: str) -> Tuple[Any, str]:
    """The module and the full name of the function that computes the step."""
    module = sys.modules[type(optimizer).step.__module__]
    return module, f"{module.__name__}.{_find_name(optimizer, implementation)}"


def _find_name(optimizer: Any, implementation: str) -> Optional[str]:
    """torch calls them alike in every module: `_fused_sgd`, `_multi_tensor_rmsprop`."""
    module = sys.modules[type(optimizer).step.__module__]
    names = (name for name, value in vars(module).items() if callable(value))
    return next((name for name in names if name.startswith(f"_{implementation}_")), None)
