"""Samples the node once a second while a session runs, in a thread of its own: a driver that hangs delays nobody."""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from advisor.protocol.telemetry import TelemetryBatch, TelemetrySample
from agent.nvml import Gpus
from agent.processes import list_descendants

_MOST_SAMPLES = 300


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
        self._cpu_count = psutil.cpu_count() or 1
        psutil.cpu_percent()  # the first call only starts the measurement
        self._before = self._read_totals()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling; does not wait for a driver that hangs."""
        self._stopping.set()

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
        before, now = self._before, self._read_totals()
        elapsed_s = now.at_s - before.at_s
        if elapsed_s <= 0:
            return
        self._before = now
        sample = TelemetrySample(
            age_s=0.0,
            cpu=min(1.0, psutil.cpu_percent() / 100),
            session_cpu=min(1.0, (now.session_cpu_s - before.session_cpu_s) / elapsed_s / self._cpu_count),
            memory_bytes=psutil.virtual_memory().used,
            devices=self._gpus.sample(),
            network_sent_bytes_per_s=max(0.0, (now.sent_bytes - before.sent_bytes) / elapsed_s),
            network_received_bytes_per_s=max(0.0, (now.received_bytes - before.received_bytes) / elapsed_s),
        )
        self._samples.append((now.at_s, sample))

    def _run(self) -> None:
        while not self._stopping.wait(self._period_s):
            self.take_sample()

    def _read_totals(self) -> _Totals:
        network = psutil.net_io_counters()
        sent, received = (network.bytes_sent, network.bytes_recv) if network else (0, 0)
        return _Totals(self._clock(), self._read_session_cpu_s(), sent, received)

    def _read_session_cpu_s(self) -> float:
        """Return CPU seconds of every process the session ever had: one that ended keeps what it used."""
        root = self._root_pid()
        for pid in list_descendants(root) if root is not None else ():
            with suppress(psutil.Error):
                times = psutil.Process(pid).cpu_times()
                self._cpu_seconds[pid] = times.user + times.system
        return sum(self._cpu_seconds.values())
