"""Where generators of random numbers stand: torch's, Python's and NumPy's."""

from __future__ import annotations

import random
import sys
from typing import Iterable

import torch


class RandomNumbers:
    """As they are when it is made: torch's on the CPU and these CUDA devices; with `others` Python's and NumPy's."""

    def __init__(self, devices: Iterable[int] = (), others: bool = False) -> None:
        self._cpu = torch.get_rng_state()
        self._devices = {device: torch.cuda.get_rng_state(device) for device in sorted(devices)}
        numpy = sys.modules.get("numpy.random") if others else None
        self._python = random.getstate() if others else None
        self._numpy = numpy.get_state() if numpy is not None else None

    def restore(self) -> None:
        torch.set_rng_state(self._cpu)
        for device, state in self._devices.items():
            torch.cuda.set_rng_state(state, device)
        if self._python is not None:
            random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy.random"].set_state(self._numpy)
