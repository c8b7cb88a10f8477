"""Samples the node while a session runs, in a thread of its own: the same for nodes with GPUs and without."""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from advisor.protocol.measured.telemetry import TelemetryBatch, TelemetrySample
from agent.devices.gpus import Gpus
from agent.guard.processes import list_descendants, read_cpu_s

_MOST_SAMPLES = 300
_PROCESSES_LISTED_EVERY_S = 3.0
"""Walking all of /proc costs milliseconds; what the known processes used is read for every sample."""
_STOP_S = 5.0


@dataclass(frozen=True)
class _Totals:
    """Counters that only grow; a sample is the difference of two."""

    at_s: float
    session_cpu_s: float
    sent_bytes: int
    received_bytes: int


class Sampler:
    """Collects samples of the node and of one session's processes."""

    def __init__(
        self,
        gpus: Gpus,
        root_pid: Callable[[], int | None],
        *,
        period_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`root_pid` tells the process whose descendants are the session, None before it runs."""
        self._gpus, self._root_pid, self._period_s, self._clock = gpus, root_pid, period_s, clock
        self._samples: deque[tuple[float, TelemetrySample]] = deque(maxlen=_MOST_SAMPLES)
        self._cpu_seconds: dict[int, float] = {}
        self._pids: list[int] = []
        self._listed_at_s: float | None = None
        self._cpu_count = psutil.cpu_count() or 1
        psutil.cpu_percent()  # the first call only starts the measurement
        self._before = self._read_totals()
        self._answered_at_s = self._before.at_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    @property
    def trouble(self) -> str:
        """What is wrong with the devices, so that the session had better end: a sentence; "" when nothing is."""
        return self._gpus.trouble

    def start(self) -> None:
        """Begin to sample."""
        self._answered_at_s = self._clock()
        self._thread.start()

    def stop(self) -> str:
        """Stop after a last look at the devices, and let go of them; return what is wrong with them, "" for nothing.

        A driver that hangs delays this by less than a second.
        """
        self._stopping.set()
        if not self._thread.is_alive():
            self._gpus.close()
            return ""
        self._thread.join(_STOP_S)
        # The processes may have died of what the last sample came too early to see.
        self.take_sample()
        trouble = self.trouble
        self._gpus.close()
        return trouble

    def drain(self) -> TelemetryBatch:
        """Return the samples since the last call, each with its age."""
        now = self._clock()
        samples = []
        with suppress(IndexError):
            while True:
                at, sample = self._samples.popleft()
                samples.append(sample.model_copy(update={"age_s": max(0.0, now - at)}))
        return TelemetryBatch(samples=tuple(samples))

    def take_sample(self) -> None:
        """Add one sample of the time since the last one."""
        reading = self._gpus.sample()
        before, now = self._before, self._read_totals()
        elapsed_s = now.at_s - before.at_s
        if elapsed_s <= 0:
            return
        self._before = now
        if reading is not None:
            self._answered_at_s = now.at_s
        sample = TelemetrySample(
            age_s=0.0,
            cpu=min(1.0, psutil.cpu_percent() / 100),
            session_cpu=min(1.0, (now.session_cpu_s - before.session_cpu_s) / elapsed_s / self._cpu_count),
            memory_bytes=psutil.virtual_memory().used,
            devices=reading.devices if reading else (),
            errors=reading.errors if reading else (),
            gap_s=now.at_s - self._answered_at_s,
            network_sent_bytes_per_s=max(0.0, (now.sent_bytes - before.sent_bytes) / elapsed_s),
            network_received_bytes_per_s=max(0.0, (now.received_bytes - before.received_bytes) / elapsed_s),
        )
        self._samples.append((now.at_s, sample))

    def _run(self) -> None:
        due_s = self._clock() + self._period_s
        while not self._stopping.wait(max(0.0, due_s - self._clock())):
            self.take_sample()
            # A sample that came late does not make the next ones hurry.
            due_s = max(due_s + self._period_s, self._clock())

    def _read_totals(self) -> _Totals:
        network = psutil.net_io_counters()
        sent, received = (network.bytes_sent, network.bytes_recv) if network else (0, 0)
        now_s = self._clock()
        return _Totals(now_s, self._read_session_cpu_s(now_s), sent, received)

    def _read_session_cpu_s(self, now_s: float) -> float:
        """Return CPU seconds of every process the session ever had: one that ended keeps what it used."""
        root = self._root_pid()
        if root is None:
            return 0.0
        if self._listed_at_s is None or now_s - self._listed_at_s >= _PROCESSES_LISTED_EVERY_S:
            self._pids, self._listed_at_s = list_descendants(root), now_s
        for pid in self._pids:
            used_s = read_cpu_s(pid)
            if used_s is not None:
                self._cpu_seconds[pid] = used_s
        return sum(self._cpu_seconds.values())
