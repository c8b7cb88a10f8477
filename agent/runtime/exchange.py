"""How ranks agree: small JSON values through the process group's store, never through a collective.

So it works with any backend and any set of groups, and cannot be mixed up with the script's own collectives.
"""

from __future__ import annotations

import json
import time
from typing import Any, Callable, List, Optional

import torch.distributed as dist


class PeerLost(RuntimeError):
    """Another rank did not reach the same step boundary in time; it has ended or hangs. See that rank's log."""


class Exchange:
    """Broadcasts from rank 0 and gathers to rank 0. Every rank makes the same calls in the same order."""

    def __init__(
        self, store: Any, session: str, rank: int, world_size: int, while_waiting: Callable[[], None]
    ) -> None:
        self._store = dist.PrefixStore(f"fleet_advisor/{session}", store)
        self._rank = rank
        self._world_size = world_size
        self._while_waiting = while_waiting
        self._turn = 0

    def broadcast(self, value: Any, what: str, timeout_s: float) -> Any:
        """Rank 0's value on every rank; the others' argument is ignored."""
        self._turn += 1
        key = f"{self._turn}/all"
        if self._rank == 0:
            self._write(key, value)
            return value
        return self._read(key, what, 0, timeout_s)

    def gather(self, value: Any, what: str, timeout_s: float) -> Optional[List[Any]]:
        """All ranks' values in rank order on rank 0, None elsewhere."""
        self._turn += 1
        if self._rank != 0:
            self._write(f"{self._turn}/{self._rank}", value)
            return None
        values = [value]
        for rank in range(1, self._world_size):
            key = f"{self._turn}/{rank}"
            values.append(self._read(key, what, rank, timeout_s))
            self._store.delete_key(key)
            self._store.delete_key(_name_count(key))
        return values

    def _write(self, key: str, value: Any) -> None:
        self._store.set(key, json.dumps(value))
        self._store.add(_name_count(key), 1)

    def _read(self, key: str, what: str, rank: int, timeout_s: float) -> Any:
        # Polling a count instead of wait(): a blocking wait holds the store client's lock, which NCCL's watchdog
        # threads need too. Stores of torch before 2.3 have no check().
        start = time.monotonic()
        last_beat = start
        pause_s = 0.0002
        while self._store.add(_name_count(key), 0) == 0:
            now = time.monotonic()
            if now - start > timeout_s:
                raise PeerLost(
                    f"Rank {self._rank} waited {timeout_s:.0f} s for {what} from rank {rank}: that rank has ended "
                    f"or hangs. See the log of rank {rank}."
                )
            if now - last_beat > 0.5:
                self._while_waiting()
                last_beat = now
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.02)
        return json.loads(self._store.get(key).decode())


def _name_count(key: str) -> str:
    """The key that says how often `key` was written: asking for it never waits."""
    return f"{key}/written"
