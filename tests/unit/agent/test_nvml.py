"""Every source of GPU figures keeps the same promises, with two GPUs, a lost one, or none."""

from types import SimpleNamespace

import pytest

from agent.nvml import NoGpus, Nvml, open_gpus


class FakeNvml:
    """NVML as pynvml offers it, with as many healthy GPUs as told; others are lost."""

    NVML_CLOCK_SM = 1
    nvmlClocksThrottleReasonGpuIdle = 1
    nvmlClocksThrottleReasonSwPowerCap = 4
    nvmlClocksThrottleReasonHwSlowdown = 8
    nvmlClocksThrottleReasonAll = 13

    class NVMLError(Exception):
        """As pynvml raises it."""

    def __init__(self, count=0, lost=(), has_driver=True, throttled=0):
        self._count, self._lost, self._has_driver, self._throttled = count, lost, has_driver, throttled
        for name in ("GpuIdle", "SwPowerCap", "HwSlowdown", "All"):
            attribute = "nvmlClocksThrottleReason" + name
            setattr(self, attribute, getattr(type(self), attribute))
        self.running = False

    def nvmlInit(self):
        if not self._has_driver:
            raise self.NVMLError("Driver Not Loaded")
        self.running = True

    def nvmlShutdown(self):
        self.running = False

    def nvmlDeviceGetCount(self):
        return self._count

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlSystemGetDriverVersion(self):
        return "615.1"

    def _ask(self, handle, value):
        if handle in self._lost or not self.running:
            raise self.NVMLError("GPU is lost")
        return value

    def nvmlDeviceGetUUID(self, handle):
        return self._ask(handle, f"GPU-{handle}{handle}{handle}")

    def nvmlDeviceGetName(self, handle):
        return self._ask(handle, b"NVIDIA H200")

    def nvmlDeviceGetMemoryInfo(self, handle):
        return self._ask(handle, SimpleNamespace(total=100, used=40 + handle))

    def nvmlDeviceGetUtilizationRates(self, handle):
        return self._ask(handle, SimpleNamespace(gpu=93))

    def nvmlDeviceGetPowerUsage(self, handle):
        return self._ask(handle, 612_000)

    def nvmlDeviceGetClockInfo(self, handle, kind):
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return self._ask(handle, self._throttled)


SOURCES = {
    "nothing": NoGpus,
    "this machine": lambda: open_gpus(None),
    "no driver": lambda: Nvml(FakeNvml(2, has_driver=False), None),
    "two": lambda: Nvml(FakeNvml(2), None),
    "one of two lost": lambda: Nvml(FakeNvml(2, lost=(1,)), None),
    "none visible": lambda: Nvml(FakeNvml(2), ""),
}


@pytest.fixture(params=SOURCES)
def gpus(request):
    return SOURCES[request.param]()


def test_devices_are_named_once(gpus):
    devices = gpus.list_devices()
    assert len({device.uuid for device in devices}) == len(devices)
    assert all(device.name and device.memory_bytes > 0 for device in devices)


def test_samples_belong_to_devices(gpus):
    indices = {device.index for device in gpus.list_devices()}
    samples = gpus.sample()
    assert {sample.index for sample in samples} <= indices
    assert all(0 <= sample.busy <= 1 and sample.memory_bytes >= 0 for sample in samples)


def test_closed_source_has_nothing_and_raises_nothing(gpus):
    gpus.close()
    gpus.close()
    assert gpus.sample() == ()


def test_figures_are_converted():
    gpus = Nvml(FakeNvml(2, throttled=1 | 4), None)
    sample = gpus.sample()[1]
    assert (sample.index, sample.busy, sample.memory_bytes, sample.power_w) == (1, 0.93, 41, 612.0)
    assert sample.sm_clock_mhz is None
    assert sample.throttled == "SwPowerCap"
    assert gpus.list_devices()[0].driver == "615.1"


def test_lost_gpu_is_left_out():
    gpus = Nvml(FakeNvml(3, lost=(1,)), None)
    assert [device.index for device in gpus.list_devices()] == [0, 2]
    assert [sample.index for sample in gpus.sample()] == [0, 2]


@pytest.mark.parametrize(
    ("visible", "indices"), [("1", [1]), ("GPU-00", [0]), ("2,0", [0, 2]), ("-1", []), (None, [0, 1, 2])]
)
def test_only_visible_gpus_are_seen(visible, indices):
    assert [device.index for device in Nvml(FakeNvml(3), visible).list_devices()] == indices
