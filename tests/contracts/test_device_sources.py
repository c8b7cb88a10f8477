"""Every source of device figures keeps the same promises: none, this machine's, made-up ones in a child, real ones.

On a machine with an NVIDIA GPU the last of them runs with:  pytest tests/contracts/test_device_sources.py -m gpu
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from agent.devices.gpus import Gpus, open_gpus
from agent.devices.telemetry import Sampler
from tests.fake_nvml import FakeNvml
from tests.no_gpus import NoGpus

MADE_UP = {
    "two": {"count": 2},
    "two older ones": {"count": 2, "gpm": False},
    "one of three lost": {"count": 3, "lost": [1]},
    "no driver": {"no_driver": True},
}


def _open_none(folder: Path) -> Gpus:
    return NoGpus()


def _open_this_machine(folder: Path) -> Gpus:
    return open_gpus(None, os.environ)


def _open_hidden(folder: Path) -> Gpus:
    return open_gpus("", FakeNvml(folder, count=2).environment)


def _make_opener(settings: dict[str, object]) -> Callable[[Path], Gpus]:
    return lambda folder: open_gpus(None, FakeNvml(folder, **settings).environment)


def _open_real(folder: Path) -> Gpus:
    gpus = open_gpus(None, os.environ)
    if not gpus.list_devices():
        pytest.skip("NVML finds no NVIDIA GPU on this machine")
    return gpus


SOURCES = [
    pytest.param(_open_none, id="none"),
    pytest.param(_open_this_machine, id="this machine"),
    pytest.param(_open_hidden, id="hidden"),
    *(pytest.param(_make_opener(settings), id=name) for name, settings in MADE_UP.items()),
    pytest.param(_open_real, id="real", marks=pytest.mark.gpu),
]


@pytest.fixture(params=SOURCES)
def gpus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gpus]:
    source = request.param(tmp_path)
    yield source
    source.close()
    assert not _list_children(), "a reader is left"


def _list_children() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if child.is_running() and "agent.devices.gpu_child" in " ".join(child.cmdline())
    ]


def test_devices_are_named_once(gpus: Gpus) -> None:
    devices = gpus.list_devices()

    assert len({device.uuid for device in devices}) == len(devices)
    assert [device.index for device in devices] == sorted(device.index for device in devices)
    assert all(device.name and device.memory_bytes > 0 and device.driver for device in devices)
    assert not _list_children(), "at rest there is no reader"


def test_sampled_figures_are_plausible_and_belong_to_the_devices(gpus: Gpus) -> None:
    devices = {device.index: device for device in gpus.list_devices()}
    sampler = Sampler(gpus, os.getpid, period_s=0.1)
    sampler.start()
    samples = []
    deadline = time.monotonic() + 60
    while sum(sample.gap_s == 0 for sample in samples) < 6:
        assert time.monotonic() < deadline, f"no samples: {samples}"
        time.sleep(0.05)
        samples += sampler.drain().samples
    sampler.stop()

    answered = [sample for sample in samples if sample.gap_s == 0]
    for sample in samples:
        assert 0 <= sample.cpu <= 1
        assert 0 <= sample.session_cpu <= 1
        assert sample.memory_bytes > 0
        assert sample.age_s >= 0
    for figures in [figures for sample in answered for figures in sample.devices]:
        device = devices[figures.index]
        assert 0 <= figures.busy <= 1
        assert 0 <= figures.memory_bytes <= device.memory_bytes
        for share in (figures.sm_active, figures.tensor_active):
            assert share is None or 0 <= share <= 1
        for rate in (figures.pcie_sent_bytes_per_s, figures.nvlink_received_bytes_per_s):
            assert rate is None or rate >= 0
    assert {figures.index for sample in answered for figures in sample.devices} == devices.keys()
    assert sampler.drain().samples  # `stop` looks once more
    print(json.dumps([figures.model_dump() for figures in answered[-1].devices]))


def test_whoever_computes_on_the_devices_is_named(gpus: Gpus) -> None:
    indices = {device.index for device in gpus.list_devices()}
    deadline = time.monotonic() + 60
    while (processes := gpus.list_processes()) is None:
        assert time.monotonic() < deadline

    assert {process.device for process in processes} <= indices
    assert all(process.pid > 0 and process.memory_bytes >= 0 for process in processes)


def test_closed_source_takes_up_the_driver_again(gpus: Gpus) -> None:
    before = gpus.list_devices()
    gpus.close()
    gpus.close()
    assert gpus.trouble == ""
    deadline = time.monotonic() + 60
    while gpus.sample() is None:
        assert time.monotonic() < deadline
    assert gpus.list_devices() == before
