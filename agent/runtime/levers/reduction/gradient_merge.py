"""The lever of gradient merge: gradients of k steps are added up, then exchanged and applied once."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch

from ...observe.reduced import list_reduced
from ...observe.torchrec import has_tables
from ...private_torch import IN_BACKWARD
from ..lever import Evidence, Lever, Training, read_count, read_switch
from .reduction_proof import ReductionPause, explain_no_pause

_SAMPLES = 2
"""Parameters, the smallest, whose gradients show whether the script changes any before it steps."""


class GradientMerge(Lever):
    """The first step after a switch is an ordinary one; from the second on every k steps make one update.

    Meanwhile `step()`, `zero_grad()` and torch's clipping do nothing, so gradients add up where autograd puts them.
    With `avg` each loss counts 1/k, as in a hand-written accumulation: the script's gradient clipping sees the mean.
    What else it does to gradients in held steps acts on the parts that are there so far, which is told. A step stays
    what the script calls a step, with the script's samples.
    """

    knobs = ("gradient_merge", "gradient_merge_k_steps", "gradient_merge_avg")
    changes_training = knobs
    replaces_reduction = True

    def __init__(self) -> None:
        self._pause = ReductionPause()
        self._values: Mapping[str, Any] = {}
        self._rejected: Dict[str, str] = {}
        self._averages = True
        self._step = 0
        self._parameters: List[torch.Tensor] = []
        self._replicas: List[Any] = []
        self._owners: List[Any] = []
        self._is_holding = False
        self._held_clears: Dict[int, Tuple[Any, Tuple[Any, ...], Dict[str, Any]]] = {}
        self._counts = {"held": 0, "updates": 0, "lost": 0}
        self._samples: List[torch.Tensor] = []
        self._left_by_backward: List[Tuple[torch.Tensor, torch.Tensor]] = []
        self._is_edited: Optional[torch.Tensor] = None

    def list_refusals(self, training: Training) -> Dict[str, str]:
        sentence = explain_no_merge(training)
        return dict.fromkeys(self.knobs, sentence) if sentence else {}

    def observe(self, training: Training) -> Dict[str, Any]:
        return {"gradient_merge": False, "gradient_merge_k_steps": 1, "gradient_merge_avg": True}

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._values, self._rejected = values, {}
        self.is_on = self.decides_steps = False
        self.period, self.least_warm_up, self.lead_in, self._step = 1, 0, 1, 0
        try:
            on = read_switch(values.get("gradient_merge", False))
            period = read_count(values.get("gradient_merge_k_steps", 1), 1)
            self._averages = read_switch(values.get("gradient_merge_avg", True))
            if on and period > 1:
                self.is_on = self.decides_steps = True
                self.period = period
                self.least_warm_up = self.lead_in = 1 + period
        except ValueError as error:
            self._rejected = {
                knob: f"Gradient merge was not switched on: {error}." for knob in self.knobs if knob in values
            }
        self._parameters = [p for ddp in training.replicas for p in list_reduced(ddp)]
        self._samples = sorted(self._parameters, key=lambda parameter: parameter.numel())[:_SAMPLES]
        self._replicas = training.replicas
        self._owners = [
            *training.all_optimizers,
            *training.replicas,
            *(ddp.module for ddp in training.replicas),
        ]
        self.begin_timing()

    @property
    def _merges_on(self) -> bool:
        """Whether the step in progress only adds to its gradients."""
        return self._step >= 1 and self._step % self.period != 0

    def before_forward(self, ddp: Any) -> None:
        if self._is_holding and all(parameter.grad is None for parameter in self._parameters):
            self._counts["lost"] += 1
        if self._merges_on and any(ddp is known for known in self._replicas):
            self._pause.begin(ddp)

    def after_forward(self, ddp: Any) -> None:
        self._pause.end()

    def drop_forward(self) -> None:
        self._pause.end()

    def before_backward(self) -> float:
        return 1.0 / self.period if self._averages and self._step >= 1 else 1.0

    def after_backward(self) -> None:
        if self._merges_on:
            known = [(sample, sample.grad) for sample in self._samples]
            self._left_by_backward = [
                (sample, grad.detach().clone()) for sample, grad in known if grad is not None
            ]

    def may_clip(self) -> bool:
        return not self._merges_on

    def may_step(self, optimizer: Any) -> bool:
        self._is_holding = self._merges_on
        if self._is_holding:
            self._compare_gradients()
        self._counts["held" if self._is_holding else "updates"] += 1
        if not self._is_holding:
            self._held_clears.clear()
        return not self._is_holding

    def _compare_gradients(self) -> None:
        for sample, left in self._left_by_backward:
            # Without waiting for the device.
            differs = (sample.grad != left).any() if sample.grad is not None else torch.tensor(True)
            self._is_edited = (
                differs if self._is_edited is None else self._is_edited.to(differs.device) | differs
            )
        self._left_by_backward = []

    def may_clear(self, owner: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> bool:
        if not self._is_holding or not any(owner is known for known in self._owners):
            return True
        self._held_clears[id(owner)] = (owner, args, kwargs)
        return False

    def end_step(self, training: Training) -> None:
        self._step += 1

    def end_segment(self, training: Training) -> None:
        """Does what was held back of the script's clearing, so that no gradient outlives it."""
        self.is_on = self._is_holding = False
        self._left_by_backward = []
        for owner, args, kwargs in self._held_clears.values():
            owner.zero_grad(*args, **kwargs)
        self._held_clears.clear()
        for ddp in training.replicas:
            ddp.require_forward_param_sync = True

    def describe_in_force(self, chosen: Mapping[str, Any]) -> Any:
        return [self.period, self._averages] if self.is_on else None

    def begin_timing(self) -> None:
        self._counts = {"held": 0, "updates": 0, "lost": 0}
        self._is_edited = None
        self._pause.count = 0

    def prove(self) -> Evidence:
        evidence = Evidence(not_consumed=dict(self._rejected))
        for knob in [knob for knob in self.knobs if knob in self._values and knob not in self._rejected]:
            consumed, sentence = self._judge(knob)
            (evidence.consumed if consumed else evidence.not_consumed)[knob] = sentence
        return evidence

    def _judge(self, knob: str) -> Tuple[bool, str]:
        if not self._values.get("gradient_merge"):
            if knob == "gradient_merge":
                return True, "Off, like the baseline: every step was exchanged and applied."
            return False, "gradient_merge is off, so nothing is merged."
        if self.period == 1:
            return False, "gradient_merge_k_steps is 1, so every step is applied on its own: set 2 or more."
        held, updates = self._counts["held"], self._counts["updates"]
        sentence = f"{updates} updates and {self._pause.count} reductions skipped; {held} steps were merged."
        if self._counts["lost"]:
            return (
                False,
                f"{sentence} The script clears gradients without zero_grad(), or compiles that into one graph, which "
                "undoes the merge.",
            )
        if self._is_edited is not None and bool(self._is_edited):
            sentence += (
                " The script changes gradients between backward and step, also what is only added up so far: merged "
                "steps weigh unequally, where a script that accumulates itself changes the sum."
            )
        if knob == "gradient_merge_avg":
            sentence += f" Each loss counted {'1/' + str(self.period) if self._averages else 'in full'}."
        return bool(held and updates and self._pause.count), sentence


def explain_no_merge(training: Training) -> str:
    """Why the gradients of several steps cannot be merged in this script; "" when they can."""
    if len(training.replicas) != 1:
        return (
            f"The script trains {len(training.replicas)} models, whose losses leave gradients in each other that it "
            "clears between them; merging would keep those."
        )
    if training.precision.scalers:
        return (
            "The script scales its loss with a GradScaler, which unscales gradients at every step: merged ones would "
            "be unscaled several times. Accumulate in the script instead."
        )
    return explain_no_pause(training) or explain_no_gate(training)


def explain_no_gate(training: Training) -> str:
    """Why an update cannot be held back between backward and step; "" when it can."""
    if sentence := find_in_backward(training):
        return f"{sentence}: no update can be held back."
    if any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in training.all_optimizers):
        return "LBFGS evaluates its closure several times in one step: its update cannot be held back."
    return ""


def find_in_backward(training: Training) -> str:
    """What updates weights inside backward, the beginning of a sentence; "" where nothing does."""
    if has_tables(training.list_modules()):
        return "TorchRec's kernels update tables inside backward"
    is_marked = any(IN_BACKWARD.is_in(p) for ddp in training.whole for p in ddp.parameters())
    return "The optimizer runs inside backward (apply_optimizer_in_backward)" if is_marked else ""
