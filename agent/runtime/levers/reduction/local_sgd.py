"""The lever of local SGD: steps without gradient exchange, and parameters averaged every k of them."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Tuple

import torch
import torch.distributed as dist

from ...observe.clock import Clock
from ...observe.reduced import list_reduced
from ..lever import Evidence, Lever, Training, read_count, read_switch
from .reduction_proof import ReductionPause, explain_no_pause

CHUNK_BYTES = 25 * 1024 * 1024


class LocalSgd(Lever):
    """Steps count from the switch: `begin_step` synchronised ones, then averaging after every k local ones.

    With a begin_step above 1 this is post-local SGD (arXiv 1808.07217).
    """

    knobs: Tuple[str, ...] = ("localsgd", "localsgd_k_steps", "localsgd_begin_step")
    """The switch, the interval and the first local step, in this order."""
    changes_training = knobs
    replaces_reduction = True
    averages_at_boundaries = True
    name = "Local SGD"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begin_step = 1
        self._interval = 1
        self._step = 0
        self._since_average = 0
        self._pause = ReductionPause()
        self._apart: List[Any] = []
        """Models that have trained apart since the last averaging, in the order of their forwards."""
        self._values: Mapping[str, Any] = {}
        self._rejected: Dict[str, str] = {}
        self._averagings = 0

    def list_refusals(self, training: Training) -> Dict[str, str]:
        sentence = explain_no_pause(training)
        return dict.fromkeys(self.knobs, sentence) if sentence else {}

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        switch, interval, begin = self.knobs
        self._values, self._rejected = values, {}
        self.is_on, self.period, self._begin_step, self._step, self._since_average = False, 1, 1, 0, 0
        self.least_warm_up, self.lead_in = 0, 1
        try:
            on = read_switch(values.get(switch, False))
            self._interval = read_count(values.get(interval, 1), 1)
            self._begin_step = read_count(values.get(begin, 1), 1)
            if on:
                self.is_on, self.period = True, self._interval
                self.least_warm_up = self.lead_in = self._begin_step + self._interval
        except ValueError as error:
            self._rejected = {
                knob: f"{self.name} was not switched on: {error}." for knob in self.knobs if knob in values
            }
        self.begin_timing()

    def before_forward(self, ddp: Any) -> None:
        if self._step >= self._begin_step:
            self._pause.begin(ddp)
            if not any(ddp is known for known in self._apart):
                self._apart.append(ddp)

    def after_forward(self, ddp: Any) -> None:
        self._pause.end()

    def drop_forward(self) -> None:
        self._pause.end()

    def end_step(self, training: Training) -> None:
        if self._step >= self._begin_step:
            self._since_average += 1
            if self._since_average >= self._interval:
                self.average(training)
        self._step += 1

    def average(self, training: Training) -> None:
        """Makes all ranks' parameters equal again."""
        # A model that learns now and then only may not be among those that train now.
        rare = [ddp for ddp in self._apart if not any(ddp is known for known in training.replicas)]
        for ddp in (*training.replicas, *rare):
            average_parameters(ddp)
        self._apart = []
        self._averagings += 1
        self._since_average = 0

    def end_segment(self, training: Training) -> None:
        """Leaves no rank with parameters of its own."""
        if self._since_average:
            self.average(training)
        for ddp in training.replicas:
            # DDP broadcasts no buffers in the forward after a step without reduction; the next block's must.
            ddp.require_forward_param_sync = True
        self.is_on = False

    def begin_timing(self) -> None:
        self._averagings = self._pause.count = 0

    def describe_in_force(self, chosen: Mapping[str, Any]) -> Any:
        return [self.period, self._begin_step] if self.is_on else None

    def prove(self) -> Evidence:
        evidence = Evidence(not_consumed=dict(self._rejected))
        chosen = [knob for knob in self.knobs if knob in self._values and knob not in self._rejected]
        sentence = self._describe()
        for knob in chosen:
            if not self._values.get(self.knobs[0]):
                if knob == self.knobs[0]:
                    evidence.consumed[knob] = "Off, like the baseline: every step was synchronised."
                else:
                    evidence.not_consumed[knob] = f"{self.knobs[0]} is off, so there are no local steps."
            elif self._pause.count and self._averagings:
                evidence.consumed[knob] = sentence
            else:
                evidence.not_consumed[knob] = (
                    sentence + f" begin_step {self._begin_step} may lie beyond the block."
                )
        return evidence

    def _describe(self) -> str:
        return f"{self._pause.count} reductions skipped and {self._averagings} averagings of parameters."


def average_parameters(ddp: Any) -> None:
    """Mean of every trained parameter over the model's ranks, in flat chunks."""
    with torch.no_grad():
        group = ddp.process_group
        share = 1.0 / dist.get_world_size(group)
        for chunk in _split([p.detach() for p in list_reduced(ddp)]):
            flat = torch.cat([parameter.reshape(-1) for parameter in chunk])
            flat.mul_(share)
            dist.all_reduce(flat, group=group)
            for parameter, mean in zip(chunk, flat.split([parameter.numel() for parameter in chunk])):
                # Through .data: a graph that the script already holds must not fail its version check.
                parameter.data.copy_(mean.view_as(parameter))


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
