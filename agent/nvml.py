"""The node's GPUs as NVML describes them; the only file that imports pynvml.

Without a driver, without the library or with a GPU that fell off the bus there are fewer devices or fewer figures,
never an exception: training must not end because its observer stumbled.
"""

import contextlib
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from advisor.protocol.cluster import Device
from advisor.protocol.telemetry import DeviceSample

_HARMLESS = ("GpuIdle", "ApplicationsClocksSetting", "None")
"""Reasons for reduced clocks that say nothing about a problem."""
_REASON = "nvmlClocksThrottleReason"

Figure = TypeVar("Figure")


class Gpus(Protocol):
    """What the agent asks of a source of GPU figures."""

    def list_devices(self) -> tuple[Device, ...]:
        """Return the visible devices in NVML's order."""

    def sample(self) -> tuple[DeviceSample, ...]:
        """Return the present figures of those that answer."""

    def close(self) -> None:
        """Let go of the driver."""


class Nvml:
    """GPUs through an initialised NVML library."""

    def __init__(self, library: Any, visible: str | None) -> None:
        """`library` has pynvml's functions; `visible` is CUDA_VISIBLE_DEVICES (None: every device)."""
        self._nvml = library
        self._handles: list[tuple[int, Any]] = []
        self._running = self._ask(lambda: (library.nvmlInit(), True)[1], False)
        if not self._running:
            return
        for index in range(self._ask(library.nvmlDeviceGetCount, 0)):
            handle = self._ask(partial(library.nvmlDeviceGetHandleByIndex, index), None)
            if handle is not None and self._is_visible(index, handle, visible):
                self._handles.append((index, handle))

    def list_devices(self) -> tuple[Device, ...]:
        """Return the visible devices; one that does not tell its UUID is left out."""
        nvml = self._nvml
        driver = self._ask_text(nvml.nvmlSystemGetDriverVersion) if self._handles else ""
        devices = []
        for index, handle in self._handles:
            uuid = self._ask_text(nvml.nvmlDeviceGetUUID, handle)
            memory = self._ask(partial(self._read_memory, handle), 0)
            if uuid:
                name = self._ask_text(nvml.nvmlDeviceGetName, handle)
                devices.append(Device(index=index, uuid=uuid, name=name, memory_bytes=memory, driver=driver))
        return tuple(devices)

    def sample(self) -> tuple[DeviceSample, ...]:
        """Return the present figures; a lost device is left out."""
        samples = (self._sample_one(index, handle) for index, handle in self._handles)
        return tuple(sample for sample in samples if sample is not None)

    def close(self) -> None:
        """Shut NVML down."""
        if self._running:
            self._ask(self._nvml.nvmlShutdown, None)
            self._running, self._handles = False, []

    def _sample_one(self, index: int, handle: Any) -> DeviceSample | None:
        nvml = self._nvml
        busy = self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100, None)
        memory = self._ask(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used), None)
        if busy is None or memory is None:
            return None
        return DeviceSample(
            index=index,
            busy=min(1.0, max(0.0, busy)),
            memory_bytes=memory,
            power_w=self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000, None),
            sm_clock_mhz=self._ask(
                lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)), None
            ),
            throttled=self._ask(lambda: self._name_reasons(handle), ""),
        )

    def _read_memory(self, handle: Any) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total)

    def _name_reasons(self, handle: Any) -> str:
        mask = int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        names = []
        for attribute in sorted(vars(self._nvml)):
            name = attribute.removeprefix(_REASON)
            bit = getattr(self._nvml, attribute)
            if (
                attribute.startswith(_REASON)
                and isinstance(bit, int)
                and name not in _HARMLESS
                and name != "All"
            ):
                names += [name] if mask & bit else []
        return ", ".join(names)

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

    def _ask(self, question: Callable[[], Figure], otherwise: Figure) -> Figure:
        with contextlib.suppress(self._nvml.NVMLError, AttributeError):
            return question()
        return otherwise


class NoGpus:
    """A node without GPUs, or without the library to see them."""

    def list_devices(self) -> tuple[Device, ...]:
        """Return nothing."""
        return ()

    def sample(self) -> tuple[DeviceSample, ...]:
        """Return nothing."""
        return ()

    def close(self) -> None:
        """Do nothing."""


def open_gpus(visible: str | None) -> Gpus:
    """Return the node's GPUs; `visible` is CUDA_VISIBLE_DEVICES (None: every device)."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return NoGpus()
    return Nvml(library, visible)
