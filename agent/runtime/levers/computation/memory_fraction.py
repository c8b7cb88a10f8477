"""The lever of FLAGS_fraction_of_gpu_memory_to_use: reserve that share of a GPU's memory at once, and cap it."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

import torch

from ..lever import Evidence, Lever, Training

KNOB = "FLAGS_fraction_of_gpu_memory_to_use"
LEAST_SEGMENT = 100
"""Steps between two reservations, each of which empties the allocator and waits for the device."""
APART_BYTES = 2**28
"""Below the cap and not reserved: torch's allocator keeps tensors of less than 1 MiB in segments of their own, and ends
the script where it may not make another one."""


class MemoryFraction(Lever):
    knobs = (KNOB,)
    serves_plain = True
    serves_sharded = True
    serves_engines = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._wanted = 0.0
        self._held = 0
        """Bytes, while nothing was reserved."""
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
            reason = self._explain_too_little(float(wanted)) if wanted else None
            if reason is not None:
                self._evidence.not_consumed[KNOB], wanted = reason, 0.0
            self._give_back()
            if wanted and not self._reserve(float(wanted)):
                wanted = 0.0
        self._wanted = float(wanted)
        self.least_segment = LEAST_SEGMENT if self._wanted else 0

    def _explain_too_little(self, share: float) -> Optional[str]:
        """Why the training would run out of memory below that cap, by what its allocator holds as it runs."""
        _, total = torch.cuda.mem_get_info(self._device)
        if not self._wanted:
            self._held = torch.cuda.memory_reserved(self._device)
        if self._held + APART_BYTES <= share * total:
            return None
        return (
            f"The training holds {self._held / 2**30:.1f} GiB, which leaves too little below {share:.0%} of the card's "
            f"{total / 2**30:.1f} GiB: it would run out of memory."
        )

    def _give_back(self) -> None:
        if self._wanted:
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(self._usual, self._device)

    def _reserve(self, share: float) -> bool:
        """Whether there was room for it."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        # The script's own cap may be lower.
        torch.cuda.set_per_process_memory_fraction(1.0, self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        wanted = int(share * total) - APART_BYTES - torch.cuda.memory_reserved(self._device)
        size = max(0, min(wanted, int(0.98 * free)))
        try:
            if size:
                # Allocated and given back: the caching allocator keeps the block, so later requests need no cudaMalloc.
                del_me = torch.empty(size, dtype=torch.uint8, device=self._device)
                del del_me
        except RuntimeError as error:  # another process on this card was faster
            self._evidence.not_consumed[KNOB] = f"{KNOB} was not set: {str(error).splitlines()[0]}"
            torch.cuda.set_per_process_memory_fraction(self._usual, self._device)
            return False
        torch.cuda.set_per_process_memory_fraction(share, self._device)
        return True

    def prove(self) -> Evidence:
        if self._wanted and not self._evidence.not_consumed and self._device.type == "cuda":
            reserved = torch.cuda.memory_reserved(self._device)
            self._evidence.consumed[KNOB] = (
                f"The allocator holds {reserved} bytes, capped at {self._wanted:.0%}."
            )
        return self._evidence
