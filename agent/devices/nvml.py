"""The node's GPUs as NVML describes them; the only file that imports pynvml, and light, for the child that asks.

Standard library and pynvml only: figures leave as plain values, which `agent.devices.gpus` parses. Without a driver,
without the library or with a GPU that fell off the bus there are fewer devices or fewer figures, never an exception. A
call may hang for ever; that is why nothing but `agent.devices.gpu_child` makes one.

GPM (Hopper and newer) tells what really computes: activity of the SMs and the tensor cores, PCIe and NVLink bytes.
Older cards have "busy", which is any kernel running, counters of NVLink, and PCIe throughput, whose question blocks
for 20 ms a direction: it is asked of one device a second, in turn.
"""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

_HARMLESS = {"All", "None", "GpuIdle", "ApplicationsClocksSetting", "UserDefinedClocks"}
"""Reasons for reduced clocks that say nothing about a problem."""
_REASONS = ("nvmlClocksThrottleReason", "nvmlClocksEventReason")
_GPU_IS_LOST = 15
_SLOW_ROUND_S = 1.0
_EVERY_LINK = 0xFFFFFFFF
_KIB, _MIB = 1024, 2**20
_MOST_ERRORS = 64
_GPM_METRICS = (
    ("sm_active", "NVML_GPM_METRIC_SM_UTIL", 0.01),
    ("tensor_active", "NVML_GPM_METRIC_ANY_TENSOR_UTIL", 0.01),
    ("pcie_sent_bytes_per_s", "NVML_GPM_METRIC_PCIE_TX_PER_SEC", _MIB),
    ("pcie_received_bytes_per_s", "NVML_GPM_METRIC_PCIE_RX_PER_SEC", _MIB),
    ("nvlink_sent_bytes_per_s", "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC", _MIB),
    ("nvlink_received_bytes_per_s", "NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC", _MIB),
)
"""Our name, NVML's, and what makes a share or bytes per second of it."""
_NVLINK_COUNTERS = (
    ("nvlink_sent_bytes_per_s", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX"),
    ("nvlink_received_bytes_per_s", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX"),
)

Figure = TypeVar("Figure")


@dataclass
class _Device:
    """One visible GPU, and what the next sample of it is compared with."""

    index: int
    handle: Any
    gpm_samples: list[Any] = field(default_factory=list)
    """Two buffers in turn, the latest last; none where the card has no GPM."""
    gpm_taken: bool = False
    nvlink_bytes: tuple[float, dict[str, int]] | None = None
    """When the counters were read, in seconds, and what they said."""
    ecc_uncorrected: int | None = None


class Nvml:
    """GPUs through an initialised NVML library."""

    def __init__(
        self,
        library: Any,
        visible: str | None,
        *,
        with_gpm: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`library` has pynvml's functions; `visible` is CUDA_VISIBLE_DEVICES (None: every device).

        `with_gpm` is false where DCGM runs: both use the same hardware counters, and disturb each other.
        """
        self._nvml, self._clock = library, clock
        self._devices: list[_Device] = []
        self._lost: set[int] = set()
        self._events: Any = None
        self._slow_round_at_s = -math.inf
        self._slow_turn = 0
        if not self._ask(lambda: (library.nvmlInit(), True)[1], False):
            return
        self._reasons = _name_reasons(library)
        for index in range(self._ask(library.nvmlDeviceGetCount, 0)):
            handle = self._ask(partial(library.nvmlDeviceGetHandleByIndex, index), None)
            if handle is not None and self._is_visible(index, handle, visible):
                self._devices.append(_Device(index, handle))
        if with_gpm:
            for device in self._devices:
                device.gpm_samples = self._ask(partial(self._allocate_gpm, device), [])
        self._watch_errors()

    def describe(self) -> list[dict[str, Any]]:
        """Return the visible devices as fields of `Device`; one that does not tell its UUID is left out."""
        nvml = self._nvml
        driver = self._ask_text(nvml.nvmlSystemGetDriverVersion) if self._devices else ""
        found = []
        for device in self._devices:
            uuid = self._ask_text(nvml.nvmlDeviceGetUUID, device.handle)
            memory = self._ask(partial(self._read_memory, device.handle), 0)
            if uuid:
                name = self._ask_text(nvml.nvmlDeviceGetName, device.handle)
                figures = {"index": device.index, "uuid": uuid, "name": name}
                found.append(figures | {"memory_bytes": memory, "driver": driver})
        return found

    def sample(self) -> dict[str, Any]:
        """Return the present figures of the devices that answer, which are lost, and Xid errors since the last call."""
        is_slow_round = self._clock() - self._slow_round_at_s >= _SLOW_ROUND_S
        if is_slow_round:
            self._slow_round_at_s = self._clock()
            self._slow_turn += 1
        samples = []
        for place, device in enumerate(self._devices):
            has_turn = is_slow_round and self._slow_turn % len(self._devices) == place
            figures = self._ask(
                partial(self._sample_one, device, is_slow_round, has_turn), None, device.index
            )
            if figures is not None:
                samples.append(figures)
        return {"devices": samples, "lost": sorted(self._lost), "xids": self._list_errors()}

    def list_processes(self) -> list[dict[str, Any]]:
        """Return who computes on the visible devices: device, process id and its memory (0 where it is not told)."""
        found = []
        none: list[Any] = []
        for device in self._devices:
            question = partial(self._nvml.nvmlDeviceGetComputeRunningProcesses, device.handle)
            for process in self._ask(question, none):
                used = process.usedGpuMemory or 0
                found.append({"device": device.index, "pid": int(process.pid), "memory_bytes": int(used)})
        return found

    def _sample_one(self, device: _Device, is_slow_round: bool, has_turn: bool) -> dict[str, Any]:
        nvml, handle = self._nvml, device.handle
        busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        memory = int(self._ask_memory(handle).used)
        if is_slow_round:
            question = partial(nvml.nvmlDeviceGetTotalEccErrors, handle)
            device.ecc_uncorrected = self._ask(
                lambda: int(question(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)), None
            )
        figures = {
            "index": device.index,
            "busy": min(1.0, max(0.0, busy)),
            "memory_bytes": memory,
            "power_w": self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000, None),
            "energy_j": self._ask(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000, None),
            "sm_clock_mhz": self._ask(
                lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)), None
            ),
            "temperature_c": self._ask(
                lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)), None
            ),
            "throttled": self._ask(lambda: self._read_reasons(handle), ""),
            "ecc_uncorrected": device.ecc_uncorrected,
        }
        nothing: dict[str, float] = {}
        if device.gpm_samples:
            return figures | self._ask(partial(self._read_gpm, device), nothing)
        figures |= self._ask(partial(self._read_nvlink, device), nothing)
        return figures | (self._ask(partial(self._read_pcie, handle), nothing) if has_turn else nothing)

    def _allocate_gpm(self, device: _Device) -> list[Any]:
        if not self._nvml.nvmlGpmQueryDeviceSupport(device.handle).isSupportedDevice:
            return []
        return [self._nvml.nvmlGpmSampleAlloc(), self._nvml.nvmlGpmSampleAlloc()]

    def _read_gpm(self, device: _Device) -> dict[str, float]:
        """GPM's figures are averages between two samples: the one of the last call and a new one."""
        before, fresh = device.gpm_samples[1], device.gpm_samples[0]
        self._nvml.nvmlGpmSampleGet(device.handle, fresh)
        device.gpm_samples = [before, fresh]
        if not device.gpm_taken:
            device.gpm_taken = True
            return {}
        request = self._nvml.c_nvmlGpmMetricsGet_t()
        request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_GPM_METRICS)
        request.sample1, request.sample2 = before, fresh
        for place, (_, metric, _) in enumerate(_GPM_METRICS):
            request.metrics[place].metricId = getattr(self._nvml, metric)
        self._nvml.nvmlGpmMetricsGet(request)
        answers = zip(_GPM_METRICS, request.metrics, strict=False)
        return {
            name: answer.value * scale
            for (name, _, scale), answer in answers
            if answer.nvmlReturn == 0 and math.isfinite(answer.value) and answer.value >= 0
        }

    def _read_nvlink(self, device: _Device) -> dict[str, float]:
        nvml = self._nvml
        fields = [(getattr(nvml, counter), _EVERY_LINK) for _, counter in _NVLINK_COUNTERS]
        values = nvml.nvmlDeviceGetFieldValues(device.handle, fields)
        now = self._clock()
        counted = {
            name: int(value.value.ullVal) * _KIB
            for (name, _), value in zip(_NVLINK_COUNTERS, values, strict=False)
            if value.nvmlReturn == 0
        }
        before, device.nvlink_bytes = device.nvlink_bytes, (now, counted)
        if before is None or now <= before[0]:
            return {}
        elapsed_s = now - before[0]
        return {
            name: (count - before[1][name]) / elapsed_s
            for name, count in counted.items()
            if count >= before[1].get(name, math.inf)
        }

    def _read_pcie(self, handle: Any) -> dict[str, float]:
        nvml = self._nvml
        sent = nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES)
        received = nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES)
        return {
            "pcie_sent_bytes_per_s": float(sent * _KIB),
            "pcie_received_bytes_per_s": float(received * _KIB),
        }

    def _read_memory(self, handle: Any) -> int:
        return int(self._ask_memory(handle).total)

    def _ask_memory(self, handle: Any) -> Any:
        """Used is what processes use, as nvidia-smi says; before driver 510 with what the driver keeps for itself."""
        nvml = self._nvml
        version = getattr(nvml, "nvmlMemory_v2", None)
        if version is not None:
            with contextlib.suppress(nvml.NVMLError):
                return nvml.nvmlDeviceGetMemoryInfo(handle, version)
        return nvml.nvmlDeviceGetMemoryInfo(handle)

    def _read_reasons(self, handle: Any) -> str:
        mask = int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return ", ".join(name for bit, name in self._reasons.items() if mask & bit)

    def _watch_errors(self) -> None:
        """Have NVML tell critical errors (Xid); on a card or in a container where it cannot, none are seen."""
        nvml = self._nvml
        self._events = self._ask(nvml.nvmlEventSetCreate, None) if self._devices else None
        if self._events is None:
            return
        for device in self._devices:
            self._ask(
                partial(
                    nvml.nvmlDeviceRegisterEvents, device.handle, nvml.nvmlEventTypeXidCriticalError, self._events
                ),
                None,
            )  # fmt: skip

    def _list_errors(self) -> list[dict[str, int]]:
        """Xid errors of the visible devices since the last call."""
        errors: list[dict[str, int]] = []
        while self._events is not None and len(errors) < _MOST_ERRORS:
            # An empty queue is an error of its own: NVMLError_Timeout.
            event = self._ask(lambda: self._nvml.nvmlEventSetWait_v2(self._events, 0), None)
            if event is None:
                break
            index = self._ask(partial(self._nvml.nvmlDeviceGetIndex, event.device), -1)
            errors.append({"device": int(index), "code": int(event.eventData)})
        return errors

    def _is_visible(self, index: int, handle: Any, visible: str | None) -> bool:
        if visible is None:
            return True
        words = [word.strip() for word in visible.split(",") if word.strip()]
        uuid = self._ask_text(self._nvml.nvmlDeviceGetUUID, handle)
        return any(
            word == str(index) or (word.startswith("GPU-") and uuid.startswith(word)) for word in words
        )

    def _ask_text(self, function: Callable[..., Any], *arguments: Any) -> str:
        value = self._ask(lambda: function(*arguments), "")
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

    def _ask(self, question: Callable[[], Figure], otherwise: Figure, index: int | None = None) -> Figure:
        """Return the answer, or `otherwise`; device `index` is remembered as lost when NVML says so."""
        with contextlib.suppress(AttributeError):
            try:
                return question()
            except self._nvml.NVMLError as error:
                if index is not None and getattr(error, "value", None) == _GPU_IS_LOST:
                    self._lost.add(index)
        return otherwise


def _name_reasons(library: Any) -> dict[int, str]:
    """Return the reasons for reduced clocks by their bit, under the newer of two names."""
    found: dict[int, str] = {}
    for attribute in sorted(dir(library), reverse=True):
        prefix = next((prefix for prefix in _REASONS if attribute.startswith(prefix)), None)
        bit = getattr(library, attribute)
        if prefix and isinstance(bit, int):
            found[bit] = attribute.removeprefix(prefix)
    return {bit: name for bit, name in sorted(found.items()) if name not in _HARMLESS}


def open_nvml(visible: str | None, with_gpm: bool) -> Nvml | None:
    """Return the node's GPUs; None without pynvml. `visible` is CUDA_VISIBLE_DEVICES (None: every device)."""
    try:
        import pynvml
    except ImportError:
        return None
    return Nvml(pynvml, visible, with_gpm=with_gpm)
