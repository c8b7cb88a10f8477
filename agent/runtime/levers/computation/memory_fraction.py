"""The lever of FLAGS_fraction_of_gpu_memory_to_use: reserve that share of a GPU's memory at once, and cap it."""

from __future__ import annotations

from typing import Any, Dict, Mapping

import torch

from ..lever import Evidence, Lever, Training

KNOB = "FLAGS_fraction_of_gpu_memory_to_use"
LEAST_SEGMENT = 100
"""Steps between two reservations, each of which empties the allocator and waits for the device."""


class MemoryFraction(Lever):
    knobs = (KNOB,)
    serves_sharded = True
    serves_engines = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._wanted = 0.0
        self._usual = 1.0
        """The share that the script itself has capped its process at."""
        self._evidence = Evidence()

    def list_refusals(self, training: Training) -> Dict[str, str]:
        if self._device.type == "cuda":
            return {}
        return {KNOB: "The job trains on CPU, and this setting reserves GPU memory."}

    def observe(self, training: Training) -> Dict[str, Any]:
        read = getattr(torch.cuda, "get_per_process_memory_fraction", None)
        if self._device.type == "cuda" and read is not None:
            self._usual = float(read(self._device))
        return {}

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._evidence = Evidence()
        wanted = values.get(KNOB, 0.0)
        if isinstance(wanted, bool) or not isinstance(wanted, (int, float)) or not 0.0 <= wanted <= 1.0:
            self._evidence.not_consumed[KNOB] = f"{wanted!r} is not a share between 0 and 1."
            wanted = 0.0
        if wanted != self._wanted and self._device.type == "cuda":
            self._reserve(float(wanted))
        self._wanted = float(wanted)
        self.least_segment = LEAST_SEGMENT if self._wanted else 0

    def _reserve(self, share: float) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        # A block that fills the share exactly is rounded up: it would not fit below the cap.
        torch.cuda.set_per_process_memory_fraction(1.0 if share else self._usual, self._device)
        if not share:
            return
        free, total = torch.cuda.mem_get_info(self._device)
        wanted = int(share * total) - torch.cuda.memory_reserved(self._device)
        size = max(0, min(wanted, int(0.98 * free)))
        if size:
            # Allocated and given back: the caching allocator keeps the block, so later requests need no cudaMalloc.
            del_me = torch.empty(size, dtype=torch.uint8, device=self._device)
            del del_me
        torch.cuda.set_per_process_memory_fraction(share, self._device)

    def prove(self) -> Evidence:
        if self._wanted and not self._evidence.not_consumed and self._device.type == "cuda":
            reserved = torch.cuda.memory_reserved(self._device)
            self._evidence.consumed[KNOB] = (
                f"The allocator holds {reserved} bytes, capped at {self._wanted:.0%}."
            )
        return self._evidence
