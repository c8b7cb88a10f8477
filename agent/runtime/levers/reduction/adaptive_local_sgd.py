"""The lever of adaptive local SGD: the averaging interval follows the loss and the learning rate."""

from __future__ import annotations

import math
from typing import Any, List, Mapping, Optional, Tuple

import torch
import torch.distributed as dist

from ...observe.clock import Clock
from ..lever import Training
from .local_sgd import LocalSgd

LONGEST_INTERVAL = 16


def choose_interval(initial: int, first: Tuple[float, float], now: Tuple[float, float], current: int) -> int:
    """Steps until the next averaging; `first` and `now` are (loss, learning rate).

    K_l = ceil(sqrt(η₀/η_l · F(x_l)/F(x₀)) · K₀), between 1 and 16 (AdaComm, arXiv 1810.08313, as the Fleet documents
    quote it, with K₀ outside the root). Where the formula has no value the current interval stays.
    """
    if not all(math.isfinite(number) and number > 0 for number in (*first, *now)):
        return current
    ratio = first[1] / now[1] * now[0] / first[0]
    return min(LONGEST_INTERVAL, max(1, math.ceil(math.sqrt(ratio) * initial)))


class AdaptiveLocalSgd(LocalSgd):
    """Local SGD with an interval of its own choice. F(x₀) and η₀ are those of the block's first step."""

    knobs = (
        "adaptive_localsgd",
        "adaptive_localsgd_init_k_steps",
        "adaptive_localsgd_begin_step",
    )
    changes_training = knobs
    name = "Adaptive local SGD"

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._first: Optional[Tuple[float, float]] = None
        self._intervals: List[int] = []

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        super().switch(values, training)
        self.needs_loss, self._first = self.is_on, None
        if self._interval > LONGEST_INTERVAL:
            self.is_on = self.needs_loss = False
            self._rejected[self.knobs[1]] = (
                f"{self.knobs[1]} is {self._interval}: the interval never exceeds {LONGEST_INTERVAL} steps."
            )

    def end_step(self, training: Training) -> None:
        if self._step == 0:
            self._first = agree_on_state(training)
        super().end_step(training)

    def average(self, training: Training) -> None:
        super().average(training)
        now = agree_on_state(training)
        if self._first is not None:
            self._interval = choose_interval(self.period, self._first, now, self._interval)
            self._intervals.append(self._interval)

    def begin_timing(self) -> None:
        super().begin_timing()
        self._intervals = []

    def _describe(self) -> str:
        intervals = ", ".join(str(interval) for interval in self._intervals)
        return f"{super()._describe()} Intervals chosen: {intervals or 'none'}."


def agree_on_state(training: Training) -> Tuple[float, float]:
    """Loss and learning rate, their means over the ranks: all must choose the same interval. NaN where unknown."""
    with torch.no_grad():
        ddp = training.replicas[0]
        device = next(ddp.parameters()).device
        rate = float(training.optimizers[0].param_groups[0]["lr"])
        mean = torch.tensor([math.nan, rate], dtype=torch.float32, device=device)
        if training.loss is not None:
            mean[0] = training.loss
        dist.all_reduce(mean, group=ddp.process_group)
        loss, rate = (mean / dist.get_world_size(ddp.process_group)).tolist()
        return loss, rate
