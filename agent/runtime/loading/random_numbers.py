"""Where the host's generators of random numbers stand: torch's, Python's and NumPy's."""

from __future__ import annotations

import random
import sys

import torch


class HostRandomNumbers:
    """As they are when it is made."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        numpy = sys.modules.get("numpy.random")
        self._numpy = numpy.get_state() if numpy is not None else None

    def restore(self) -> None:
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy.random"].set_state(self._numpy)
