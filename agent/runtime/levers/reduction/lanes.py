"""Where multi-stage reductions run, in the order in which they were handed in: a thread on CPU, a stream on CUDA.

Where a stage blocks its caller on CUDA (gloo between nodes), a thread with a stream of its own.

A callback of a Future must never block: gloo completes other collectives on the same threads, and deadlocks.
"""

from __future__ import annotations

import glob
import queue
import threading
import time
from typing import Any, Callable, Optional, Tuple

import torch

Work = Callable[[], torch.Tensor]
CLOSE_S = 2.0
"""Most seconds that a lane is waited for: a rank that is gone answers nothing."""
REST_S, LOOK_S, LOOKS = 1.0, 0.002, 3
"""Most seconds for which gloo's threads are waited for, the seconds between two looks, and the looks in a row."""


class ThreadLane:
    """One ordered thread. gloo's collectives block their caller, so a chain of them needs a thread of its own."""

    def __init__(self) -> None:
        self._queue: "queue.SimpleQueue[Optional[Tuple[Work, Any]]]" = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="fleet-advisor-lane", daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> Any:
        future: Any = torch.futures.Future()
        self._queue.put((work, future))
        return future

    def close(self) -> None:
        """Ends the thread after the work handed in so far."""
        self._queue.put(None)
        self._thread.join(timeout=CLOSE_S)

    def _work(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            work, future = item
            try:
                with torch.no_grad():
                    future.set_result(work())
            except Exception as error:  # the training thread waits on this future: hand the error over
                future.set_exception(error)


class StreamLane:
    """A side stream. NCCL's collectives only queue work, so the caller can issue all stages itself.

    That also keeps the launch order of several communicators the same on every rank, which NCCL demands.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def submit(self, work: Work) -> Any:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream), torch.no_grad():
            result = work()
            result.record_stream(self._stream)
            # Set under the side stream: a stream that waits on the future waits for this one.
            future: Any = torch.futures.Future(devices=[self._device])
            future.set_result(result)
        return future

    def close(self) -> None:
        self._stream.synchronize()


class StreamThreadLane(ThreadLane):
    """A thread that works on a side stream: gloo waits there until its bytes have come back, and backward goes on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        super().__init__()

    def submit(self, work: Work) -> Any:
        ready = torch.cuda.current_stream(self._device).record_event()
        future: Any = torch.futures.Future(devices=[self._device])
        self._queue.put((lambda: self._after(ready, work), future))
        return future

    def _after(self, ready: Any, work: Work) -> torch.Tensor:
        self._stream.wait_event(ready)
        result = work()
        result.record_stream(self._stream)
        return result

    def _work(self) -> None:
        # The futures are answered under the side stream: a stream that waits on them waits for this one.
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            super()._work()


def let_threads_rest() -> None:
    """Before the interpreter ends: gloo's threads let go of hooks and tensors a moment after training has gone on. One
    that wants the interpreter's lock for that after its end aborts the process."""
    if not glob.glob("/proc/self/task/*"):
        time.sleep(0.1)
        return
    end_s, quiet = time.monotonic() + REST_S, 0
    while quiet < LOOKS and time.monotonic() < end_s:
        time.sleep(LOOK_S)
        quiet = 0 if _is_any_running() else quiet + 1


def _is_any_running() -> bool:
    """Whether another thread of this process is at work, or would be if it had a core."""
    own = threading.get_native_id()
    for folder in glob.glob("/proc/self/task/*"):
        try:
            with open(f"{folder}/stat") as file:
                state = file.read().rpartition(")")[2].split()[0]
        except OSError:
            continue  # it has ended
        if state == "R" and int(folder.rpartition("/")[2]) != own:
            return True
    return False


def open_lane(device: torch.device, blocks: bool = False) -> Any:
    """`blocks` says that a stage makes its caller wait for the network, also on CUDA."""
    if device.type != "cuda":
        return ThreadLane()
    return StreamThreadLane(device) if blocks else StreamLane(device)
