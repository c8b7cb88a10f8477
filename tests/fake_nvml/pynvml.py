"""NVML as pynvml offers it, with made-up GPUs: first on the child's PYTHONPATH, it stands in for the real module.

FAKE_NVML names a JSON file that is read again at every sample, so that a test can change the GPUs while they are
watched: `count`, `lost` and `throttled` (index -> bits), `clock_mhz` (index -> MHz), `xids` (told once per change of
the file), `processes`, `gpm` (false: an older card), `hang` (the next question is never answered), `no_driver`,
`old_driver` (before 510).
"""

import ctypes
import json
import os
import time
from types import SimpleNamespace
from typing import ClassVar

NVML_CLOCK_SM = 1
NVML_TEMPERATURE_GPU = 0
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
NVML_VOLATILE_ECC = 0
NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 138, 139
NVML_GPM_METRICS_GET_VERSION = 1
NVML_GPM_METRIC_SM_UTIL, NVML_GPM_METRIC_ANY_TENSOR_UTIL = 2, 5
NVML_GPM_METRIC_PCIE_TX_PER_SEC, NVML_GPM_METRIC_PCIE_RX_PER_SEC = 20, 21
NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC = 60, 61
nvmlMemory_v2 = 0x02000028
nvmlEventTypeXidCriticalError = 8
nvmlClocksThrottleReasonGpuIdle = 1
nvmlClocksThrottleReasonSwPowerCap = 4
nvmlClocksThrottleReasonHwSlowdown = 8
nvmlClocksThrottleReasonAll = 13
nvmlClocksEventReasonGpuIdle = 1
nvmlClocksEventReasonSwPowerCap = 4
nvmlClocksEventReasonHwSlowdown = 8
_GIB = 2**30
_GPM = {2: 61.0, 5: 34.0, 20: 100.0, 21: 50.0, 60: 2000.0, 61: 3000.0}


class NVMLError(Exception):
    """As pynvml raises it: `value` is NVML's return code."""

    def __init__(self, value):
        super().__init__(f"NVML error {value}")
        self.value = value


class _Metric(ctypes.Structure):
    _fields_ = (("metricId", ctypes.c_uint), ("nvmlReturn", ctypes.c_uint), ("value", ctypes.c_double))


class c_nvmlGpmMetricsGet_t:
    """The real one is a ctypes structure with room for every metric."""

    def __init__(self):
        self.version = self.numMetrics = 0
        self.sample1 = self.sample2 = None
        self.metrics = (_Metric * 477)()


class _State:
    running = False
    settings: ClassVar[dict] = {}
    read_at_ns = 0
    xids: ClassVar[list] = []


def _read():
    path = os.environ["FAKE_NVML"]
    changed_at_ns = os.stat(path).st_mtime_ns
    if changed_at_ns != _State.read_at_ns:
        with open(path) as file:
            _State.settings = json.load(file)
        _State.read_at_ns = changed_at_ns
        _State.xids = list(_State.settings.get("xids", []))
    while _State.settings.get("hang"):
        time.sleep(3600)


def _get(name, default=None):
    return _State.settings.get(name, default)


def _check(handle):
    if not _State.running or (handle is not None and handle in _get("lost", [])):
        raise NVMLError(15)


def nvmlInit():
    _read()
    if _get("no_driver"):
        raise NVMLError(9)
    _State.running = True


def nvmlDeviceGetCount():
    _check(None)
    return _get("count", 2)


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetIndex(handle):
    _check(handle)
    return handle


def nvmlSystemGetDriverVersion():
    return "615.1"


def nvmlDeviceGetUUID(handle):
    _check(handle)
    return f"GPU-{handle}{handle}{handle}"


def nvmlDeviceGetName(handle):
    _check(handle)
    return b"NVIDIA H200"


def nvmlDeviceGetMemoryInfo(handle, version=None):
    """The first version counts what the driver keeps for itself as used; the second came with driver 510."""
    _check(handle)
    used, reserved = (40 + handle) * _GIB, 600 * 2**20
    if not version:
        return SimpleNamespace(total=141 * _GIB, free=141 * _GIB - used - reserved, used=used + reserved)
    assert version == nvmlMemory_v2
    if _get("old_driver"):
        raise NVMLError(13)  # no such function
    return SimpleNamespace(
        version=version, total=141 * _GIB, reserved=reserved, free=141 * _GIB - used - reserved, used=used
    )


def nvmlDeviceGetUtilizationRates(handle):
    if handle == 0:
        _read()
    _check(handle)
    return SimpleNamespace(gpu=93)


def nvmlDeviceGetPowerUsage(handle):
    _check(handle)
    return 612_000


def nvmlDeviceGetTotalEnergyConsumption(handle):
    _check(handle)
    if _get("old_driver"):
        raise NVMLError(3)  # as cards before Volta do: not supported
    return int(time.monotonic() * 612_000)


def nvmlDeviceGetClockInfo(handle, kind):
    _check(handle)
    return _get("clock_mhz", {}).get(str(handle), 1980)


def nvmlDeviceGetTemperature(handle, kind):
    raise NVMLError(3)  # not supported


def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
    _check(handle)
    return _get("throttled", {}).get(str(handle), 1)


def nvmlDeviceGetTotalEccErrors(handle, kind, counter):
    _check(handle)
    return 0


def nvmlDeviceGetPcieThroughput(handle, counter):
    _check(handle)
    return 1000


def nvmlDeviceGetFieldValues(handle, fields):
    _check(handle)
    count = int(time.monotonic() * 1e6)
    return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=count)) for _ in fields]


def nvmlDeviceGetComputeRunningProcesses(handle):
    if handle == 0:
        _read()
    _check(handle)
    return [
        SimpleNamespace(pid=entry["pid"], usedGpuMemory=entry.get("memory_bytes"))
        for entry in _get("processes", [])
        if entry["device"] == handle
    ]


def nvmlGpmQueryDeviceSupport(handle):
    return SimpleNamespace(isSupportedDevice=int(_get("gpm", True)))


def nvmlGpmSampleAlloc():
    return SimpleNamespace(at_s=0.0)


def nvmlGpmSampleGet(handle, sample):
    _check(handle)
    sample.at_s = time.monotonic()


def nvmlGpmMetricsGet(request):
    backwards = request.sample1.at_s >= request.sample2.at_s or not request.sample1.at_s
    for place in range(request.numMetrics):
        metric = request.metrics[place]
        metric.nvmlReturn, metric.value = (2, float("nan")) if backwards else (0, _GPM[metric.metricId])


def nvmlEventSetCreate():
    return object()


def nvmlDeviceRegisterEvents(handle, types, events):
    _check(handle)


def nvmlEventSetWait_v2(events, timeout_ms):
    if not _State.xids:
        raise NVMLError(10)  # timeout
    device, code = _State.xids.pop(0)
    return SimpleNamespace(device=device, eventData=code)
