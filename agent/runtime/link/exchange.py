"""How ranks agree: small JSON values through the process group's store, never through a collective.

So it works with any backend and any set of groups, and cannot be mixed up with the script's own collectives. A rank
that has waited long enough gives up for all: the store decides whether rank 0's word or the end came first, so that
every rank goes on with the same. One
process answers all ranks' requests to the store, one after another: so rank 0 makes only a few of them, and ranks that
wait look so seldom that together they leave it free.
"""

from __future__ import annotations

import functools
import json
import math
import time
from typing import Any, Callable, Dict, List, NoReturn, Optional, TypeVar, cast

import torch.distributed as dist

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.0002, 0.02
"""Between two looks of a rank that waits alone."""
LOOKS_PER_S = 5000.0
"""Of all ranks that wait for the same value: a tenth of what a store can answer."""
AT_ONCE = 256
"""Values that rank 0 reads in one request."""
BEAT_EVERY_S = 0.5
BEATS_A_LOOK = 4
"""After so many a rank that waits looks whether the one that it waits for has left."""
GIVEN_UP = "null and void"
"""In the place of a broadcast value. No JSON."""


class PeerLost(RuntimeError):
    """Another rank did not reach the same step boundary in time; it has ended or hangs. See that rank's log."""


Call = TypeVar("Call", bound=Callable[..., Any])


def _lose_with_store(exchange: Call) -> Call:
    """The store may be another rank's, and gone with it."""

    @functools.wraps(exchange)
    def call(self: Any, *args: Any) -> Any:
        try:
            return exchange(self, *args)
        except PeerLost:
            raise
        except RuntimeError as error:
            first = str(error).splitlines()[0]
            raise PeerLost(f"The store in which the ranks meet has ended with its rank: {first}") from error

    return cast(Call, call)


class Exchange:
    """Broadcasts from rank 0 and gathers to rank 0. Every rank makes the same calls in the same order."""

    def __init__(
        self,
        store: Any,
        session: str,
        rank: int,
        world_size: int,
        while_waiting: Callable[[], None],
        when_done: Callable[[], None] = lambda: None,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        most_s: float = math.inf,
    ) -> None:
        """`while_waiting` is called about twice a second during a wait, `when_done` after each exchange.

        No wait is longer than `most_s`. After one that was in vain nothing is exchanged any more.
        """
        self._store = dist.PrefixStore(f"fleet_advisor/{session}", store)
        self._rank = rank
        self._world_size = world_size
        self._while_waiting, self._when_done = while_waiting, when_done
        self._now_s, self._sleep = now_s, sleep
        self._most_s = most_s
        self._lost = ""
        self._turn = 0
        self._slot = 0
        """Gathers since the last broadcast. What rank 0 has read before that one is written over."""
        self._old: List[str] = []
        """Keys of rank 0's that others may not have read yet."""

    @_lose_with_store
    def broadcast(self, value: Any, what: str, timeout_s: float) -> Any:
        """Rank 0's value on every rank; the others' argument is ignored."""
        self._begin_turn()
        self._slot = 0
        key, count = f"{self._turn}/all", f"{self._turn}/all/written"
        if self._rank == 0:
            found = self._store.compare_set(key, "", json.dumps(value)).decode()
            self._store.add(count, 1)
            self._old += [key, count]
            lost = f"Another rank waited for {what} in vain. See the other ranks' logs."
        else:
            lost = self._wait_for(count, 1, self._world_size - 1, timeout_s, what, lambda: [0])
            if lost:
                found = self._store.compare_set(key, "", GIVEN_UP).decode()
                self._store.add(count, 1)
            else:
                found = self._store.get(key).decode()
            lost = lost or f"Another rank gave up waiting for {what}. See the other ranks' logs."
        if found == GIVEN_UP:
            self._give_up(lost)
        self._when_done()
        return value if self._rank == 0 else json.loads(found)

    @_lose_with_store
    def gather(self, value: Any, what: str, timeout_s: float) -> Optional[List[Any]]:
        """All ranks' values in rank order on rank 0, None elsewhere."""
        self._begin_turn()
        slot, self._slot = f"slot/{self._slot}", self._slot + 1
        count = f"{self._turn}/count"
        values = None
        if self._rank != 0:
            self._store.set(f"{slot}/{self._rank}", json.dumps([self._turn, value]))
            self._store.add(count, 1)
        else:
            others = range(1, self._world_size)
            lost = self._wait_for(count, len(others), 1, timeout_s, what, lambda: self._find_missing(slot))
            if lost:
                self._give_up(lost)
            values = [value, *self._read([f"{slot}/{rank}" for rank in others])]
            self._forget(count)
        self._when_done()
        return values

    def leave(self) -> None:
        """This rank exchanges nothing any more: others need not wait for it to their end."""
        self._store.set(f"left/{self._rank}", "yes")
        self._store.add("lost", 1)

    def _begin_turn(self) -> None:
        self._turn += 1
        if self._lost:
            raise PeerLost(self._lost)

    def _give_up(self, lost: str) -> NoReturn:
        self._lost = lost
        self.leave()
        raise PeerLost(lost)

    def _read(self, keys: List[str]) -> List[Any]:
        """What the ranks wrote in this turn."""
        texts: List[bytes] = []
        if getattr(self._store, "has_extended_api", lambda: False)():
            for start in range(0, len(keys), AT_ONCE):
                texts += self._store.multi_get(keys[start : start + AT_ONCE])
        else:
            texts = [self._store.get(key) for key in keys]
        return [json.loads(text.decode())[1] for text in texts]

    def _forget(self, count: str) -> None:
        """Every rank has written after the broadcasts before this gather: it has read them."""
        for key in (*self._old, count):
            self._store.delete_key(key)
        self._old = []

    def _wait_for(
        self,
        count: str,
        wanted: int,
        waiting: int,
        timeout_s: float,
        what: str,
        find_missing: Callable[[], List[int]],
    ) -> str:
        """Until the count is reached: "". Else why it was not."""
        # Looking at a count instead of wait(): a blocking wait holds the store client's lock, which NCCL's watchdog
        # threads need too, and complains on stderr when it ends. Stores of torch before 2.3 have no check().
        timeout_s = min(timeout_s, self._most_s)
        start_s, beats = self._now_s(), 0
        last_beat_s = start_s
        longest_s = max(LONGEST_PAUSE_S, waiting / LOOKS_PER_S)
        pause_s = max(FIRST_PAUSE_S, waiting / LOOKS_PER_S / 4)
        while self._store.add(count, 0) < wanted:
            now_s = self._now_s()
            if now_s - start_s > timeout_s:
                return self._describe_lost(timeout_s, what, find_missing())
            if now_s - last_beat_s > BEAT_EVERY_S:
                self._while_waiting()
                last_beat_s, beats = now_s, beats + 1
                if beats % BEATS_A_LOOK == 0 and self._store.add("lost", 0):
                    # One that left before it was missed a second time will never write.
                    left = self._find_left(find_missing())
                    gone = [rank for rank in find_missing() if rank in left] if left else []
                    if gone:
                        return (
                            f"Rank {gone[0]} has ended, or gave up waiting, before {what}. See the log of rank "
                            f"{gone[0]}."
                        )
            self._sleep(pause_s)
            pause_s = min(pause_s * 1.5, longest_s)
        return ""

    def _find_missing(self, slot: str) -> List[int]:
        """The ranks that have not written in this turn."""
        found: Dict[int, bytes] = {}
        for rank in range(1, self._world_size):
            # Unlike get() it does not wait for a key that no rank has written.
            found[rank] = self._store.compare_set(f"{slot}/{rank}", "", "")
        return [
            rank for rank, text in found.items() if not text or json.loads(text.decode())[0] != self._turn
        ]

    def _find_left(self, ranks: List[int]) -> List[int]:
        return [rank for rank in ranks if self._store.compare_set(f"left/{rank}", "", "")]

    def _describe_lost(self, timeout_s: float, what: str, ranks: List[int]) -> str:
        waited = f"Rank {self._rank} waited {timeout_s:.0f} s for {what} from"
        if len(ranks) == 1:
            return f"{waited} rank {ranks[0]}: that rank has ended or hangs. See the log of rank {ranks[0]}."
        named = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
        return f"{waited} ranks {named}: they have ended or hang. See the log of rank {ranks[0] if ranks else 0}."
