"""The lever of DDP's broadcast of buffers: off where no buffer changes while the model trains."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from ...observe.digests import digest
from ...private_torch import is_batch_norm
from ..lever import Evidence, Lever, Training, read_switch

KNOB = "broadcast_buffers"
CHANGE = "Some buffers change while the model trains: without rank 0's broadcast each rank would go on with its own."
MIB = 2**20


class BufferBroadcast(Lever):
    """Rank 0's buffers go to all ranks before each forward. Where none changes, they are what the ranks have.

    Whether they do is asked of all their bits: over the first steps of the script, and again over the steps without a
    broadcast, in a real training ever more rarely for as long as it lasts: going back restores rank 0's on every rank.
    """

    knobs = (KNOB,)

    def __init__(self) -> None:
        self._first: Optional[Dict[int, List[bytes]]] = None
        """By model, the digests at the first boundary."""
        self._before: Optional[Dict[int, List[bytes]]] = None
        """Those at the first switch of a race that left the broadcast out."""
        self._silent: List[Any] = []
        """Models whose broadcast is left out now."""
        self._steps = 0
        self._evidence = Evidence()

    def watch(self, training: Training) -> None:
        if self._first is None and any(map(_sends, training.replicas)):
            self._first = _digest(training.replicas)

    def list_refusals(self, training: Training) -> Dict[str, str]:
        reason = self._explain_needed(training)
        return {KNOB: reason} if reason else {}

    def _explain_needed(self, training: Training) -> Optional[str]:
        sending = [ddp for ddp in training.replicas if _sends(ddp)]
        if not sending:
            return "DistributedDataParallel broadcasts no buffers in this script."
        if any(hasattr(ddp, "buffer_hook") for ddp in sending):
            return "The script exchanges buffers by a hook of its own."
        if any(_keeps_statistics(module) for ddp in sending for module in ddp.module.modules()):
            return (
                "Batch norm keeps running statistics in buffers: without rank 0's broadcast each rank would evaluate "
                "by its own."
            )
        now = _digest(sending)
        if (
            self._first is None
            or now is None
            or any(self._first.get(key) != bits for key, bits in now.items())
        ):
            return CHANGE
        return None

    def observe(self, training: Training) -> Dict[str, Any]:
        return {KNOB: any(ddp.broadcast_buffers for ddp in training.replicas)}

    def begin_race(self) -> None:
        self._before = None

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._evidence = Evidence()
        for ddp in self._silent:
            ddp.broadcast_buffers = True
        self._silent = []
        try:
            sends = read_switch(values.get(KNOB, True))
        except ValueError as error:
            self._evidence.not_consumed[KNOB] = f"{KNOB} was not set: {error}."
            return
        if sends:
            if KNOB in values:
                self._evidence.consumed[KNOB] = "The value equals the baseline's: DDP broadcasts its buffers."
            return
        self._silent = [ddp for ddp in training.replicas if _sends(ddp)]
        self._before = self._before or _digest(self._silent)
        for ddp in self._silent:
            ddp.broadcast_buffers = False

    def list_faults(self) -> Dict[str, str]:
        return {} if not self._silent or self._before == _digest(self._silent) else {KNOB: CHANGE}

    def prove(self) -> Evidence:
        if not self._silent:
            return self._evidence
        buffers = [buffer for ddp in self._silent for buffer in ddp.module.buffers()]
        size = sum(buffer.numel() * buffer.element_size() for buffer in buffers) / MIB
        if any(ddp.broadcast_buffers for ddp in self._silent):
            self._evidence.not_consumed[KNOB] = "The script switched the broadcast of its buffers on again."
        elif self._before is None or self._before != _digest(self._silent):
            self._evidence.not_consumed[KNOB] = CHANGE
        else:
            self._evidence.consumed[KNOB] = (
                f"{len(buffers)} buffers ({size:.3g} MiB) were not sent, and no bit of them changed on any rank."
            )
        return self._evidence


def _sends(ddp: Any) -> bool:
    return bool(ddp.broadcast_buffers) and next(ddp.module.buffers(), None) is not None


def _keeps_statistics(module: Any) -> bool:
    return is_batch_norm(module) and module.running_mean is not None


def _digest(models: List[Any]) -> Optional[Dict[int, List[bytes]]]:
    """By model, of each buffer; None where one cannot be read."""
    try:
        return {id(ddp): [digest(buffer) for buffer in ddp.module.buffers()] for ddp in models}
    except Exception:  # what a buffer may be (nested, shared out over ranks) is not ours to know
        return None
