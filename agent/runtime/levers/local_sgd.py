"""The lever of local SGD: steps without gradient exchange, and parameters averaged every k of them."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Tuple

import torch
import torch.distributed as dist

from .lever import Evidence, Lever, Training, read_count, read_switch

CHUNK_BYTES = 25 * 1024 * 1024


class LocalSgd(Lever):
    """Steps count from the start of the block: `begin_step` synchronised ones, then averaging after every k local ones.

    With a begin_step above 1 this is post-local SGD (arXiv 1808.07217).
    """

    knobs = ("localsgd", "localsgd_k_steps", "localsgd_begin_step")
    changes_training = knobs
    replaces_reduction = True

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self.is_on = False
        self.period = 1
        self._begin_step = 1
        self._step = 0
        self._since_average = 0
        self._suspended: List[Any] = []
        self._values: Mapping[str, Any] = {}
        self._rejected: Dict[str, str] = {}
        self._averagings: List[Tuple[Any, Any]] = []
        self._skipped = 0

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._values, self._rejected = values, {}
        self.is_on, self.period, self._begin_step, self._step, self._since_average = False, 1, 1, 0, 0
        self.least_warm_up = 0
        try:
            on = read_switch(values.get("localsgd", False))
            period = read_count(values.get("localsgd_k_steps", 1), 1)
            self._begin_step = read_count(values.get("localsgd_begin_step", 1), 1)
            if on:
                self.is_on, self.period = True, period
                self.least_warm_up = self._begin_step + period
        except ValueError as error:
            self._rejected = {
                knob: f"Local SGD was not switched on: {error}." for knob in self.knobs if knob in values
            }
        self.begin_timing()

    def before_forward(self, ddp: Any) -> None:
        """Skips this step's reduction, unless the script itself skips it already (no_sync)."""
        if self._step >= self._begin_step and ddp.require_backward_grad_sync:
            ddp.require_backward_grad_sync = False
            self._suspended.append(ddp)
            self._skipped += 1

    def after_forward(self, ddp: Any) -> None:
        if self._suspended:
            for suspended in self._suspended:
                suspended.require_backward_grad_sync = True
            self._suspended.clear()

    def end_step(self, training: Training) -> None:
        if self._step >= self._begin_step:
            self._since_average += 1
            if self._since_average == self.period:
                self.average(training.replicas)
        self._step += 1

    def average(self, replicas: List[Any]) -> None:
        """Makes all ranks' parameters equal again."""
        start = self._clock.mark()
        for ddp in replicas:
            average_parameters(ddp)
        self._averagings.append((start, self._clock.mark()))
        self._since_average = 0

    def end_block(self, training: Training) -> None:
        """Leaves no rank with parameters of its own."""
        if self._since_average:
            self.average(training.replicas)
        for ddp in training.replicas:
            # DDP broadcasts no buffers in the forward after a step without reduction; the next block's must.
            ddp.require_forward_param_sync = True
        self.is_on = False

    def begin_timing(self) -> None:
        self._averagings, self._skipped = [], 0

    def measure_boundary_s(self) -> float:
        return sum(self._clock.measure(start, end) for start, end in self._averagings)

    def prove(self) -> Evidence:
        evidence = Evidence(not_consumed=dict(self._rejected))
        chosen = [knob for knob in self.knobs if knob in self._values and knob not in self._rejected]
        sentence = f"{self._skipped} reductions skipped and {len(self._averagings)} averagings of parameters."
        for knob in chosen:
            if not self._values.get("localsgd"):
                if knob == "localsgd":
                    evidence.consumed[knob] = "Off, like the baseline: every step was synchronised."
                else:
                    evidence.not_consumed[knob] = "localsgd is off, so there are no local steps."
            elif self._skipped and self._averagings:
                evidence.consumed[knob] = sentence
            else:
                evidence.not_consumed[knob] = (
                    sentence + f" begin_step {self._begin_step} may lie beyond the block."
                )
        return evidence


@torch.no_grad()
def average_parameters(ddp: Any) -> None:
    """Mean of every trained parameter over the model's ranks, in flat chunks."""
    group = ddp.process_group
    share = 1.0 / dist.get_world_size(group)
    for chunk in _split([p.detach() for p in ddp._module_parameters if p.requires_grad]):
        flat = torch._utils._flatten_dense_tensors(chunk)
        flat.mul_(share)
        dist.all_reduce(flat, group=group)
        for parameter, mean in zip(chunk, torch._utils._unflatten_dense_tensors(flat, chunk), strict=False):
            # Through .data: a graph that the script already holds must not fail its version check.
            parameter.data.copy_(mean)


def _split(tensors: List[torch.Tensor]) -> Iterator[List[torch.Tensor]]:
    by_type: Dict[Tuple[torch.dtype, torch.device], List[torch.Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for same in by_type.values():
        chunk: List[torch.Tensor] = []
        size = 0
        for tensor in same:
            chunk.append(tensor)
            size += tensor.numel() * tensor.element_size()
            if size >= CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk
