"""Made-up GPUs in a real child process: what is read, what is made of failures, and what a driver that hangs does."""

import importlib.util
import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from agent.devices.foreign import find_foreign_load
from agent.devices.gpus import ChildGpus, Deadlines, Reading, describe_failure
from agent.devices.telemetry import Sampler
from tests.fake_nvml import FakeNvml

QUICK = Deadlines(start_s=30.0, restart_s=1.0, answer_s=0.6)

Opener = Callable[..., tuple[ChildGpus, FakeNvml]]


@pytest.fixture
def open_made_up(tmp_path: Path) -> Iterator[Opener]:
    opened = []

    def open_them(visible: str | None = None, deadlines: Deadlines = Deadlines(), **settings: object):
        fake = FakeNvml(tmp_path, **settings)
        opened.append(ChildGpus(visible, fake.environment, deadlines=deadlines))
        return opened[-1], fake

    yield open_them
    for gpus in opened:
        gpus.close()


def read_until(gpus: ChildGpus, wanted: Callable[[Reading | None], bool]) -> Reading | None:
    deadline = time.monotonic() + 60
    while not wanted(reading := gpus.sample()):
        assert time.monotonic() < deadline, reading
    return reading


def find_reader() -> psutil.Process:
    return next(c for c in psutil.Process().children() if "agent.devices.gpu_child" in " ".join(c.cmdline()))


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_made_up_library_has_the_real_ones_functions_and_numbers() -> None:
    real = pytest.importorskip("pynvml")
    path = Path(__file__).parents[2] / "fake_nvml" / "pynvml.py"
    spec = importlib.util.spec_from_file_location("made_up_pynvml", path)
    made_up = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made_up)
    for name, ours in vars(made_up).items():
        if not name.startswith(("nvml", "NVML")):
            continue
        theirs = getattr(real, name)
        if inspect.isfunction(ours):
            kinds = [
                [p.default is p.empty for p in inspect.signature(function).parameters.values()]
                for function in (ours, theirs)
            ]
            assert kinds[0] == kinds[1][: len(kinds[0])], name
            assert sum(kinds[0]) == sum(kinds[1]), name
        elif isinstance(ours, int) and name != "NVML_GPM_METRICS_GET_VERSION" and not name.endswith("All"):
            assert ours == theirs, name


def test_figures_are_converted(open_made_up: Opener) -> None:
    gpus, _ = open_made_up(throttled={"1": 1 | 4})
    assert [device.driver for device in gpus.list_devices()] == ["615.1", "615.1"]
    # GPM's figures are averages between two readings, so that the first one has none.
    reading = read_until(gpus, lambda reading: bool(reading and reading.devices[1].sm_active))

    figures = reading.devices[1]
    assert (figures.index, figures.busy, figures.memory_bytes, figures.power_w) == (
        1,
        0.93,
        41 * 2**30,
        612.0,
    )
    assert (figures.sm_clock_mhz, figures.temperature_c, figures.ecc_uncorrected) == (1980, None, 0)
    assert figures.throttled == "SwPowerCap"
    assert figures.energy_j > 0
    assert (figures.sm_active, figures.tensor_active) == (0.61, pytest.approx(0.34))
    assert figures.nvlink_sent_bytes_per_s == 3000 * 2**20
    assert figures.pcie_received_bytes_per_s == 50 * 2**20


def test_what_an_older_driver_keeps_for_itself_counts_as_used(open_made_up: Opener) -> None:
    """nvidia-smi does not count it, nor do we where the driver tells it apart."""
    used = []
    for is_old in (False, True):
        gpus, _ = open_made_up(old_driver=is_old)
        reading = read_until(gpus, lambda reading: bool(reading and reading.devices))
        used.append(reading.devices[0].memory_bytes)
        gpus.close()
    assert used == [40 * 2**30, 40 * 2**30 + 600 * 2**20]


def test_older_card_tells_traffic_without_gpm(open_made_up: Opener) -> None:
    gpus, _ = open_made_up(gpm=False, count=1)
    reading = read_until(gpus, lambda reading: bool(reading and reading.devices[0].pcie_sent_bytes_per_s))
    assert reading.devices[0].pcie_sent_bytes_per_s == 1000 * 1024
    reading = read_until(gpus, lambda reading: bool(reading and reading.devices[0].nvlink_sent_bytes_per_s))
    # The made-up counter grows by a million KiB a second.
    assert reading.devices[0].nvlink_sent_bytes_per_s == pytest.approx(1e6 * 1024, rel=0.2)
    assert reading.devices[0].sm_active is None


@pytest.mark.parametrize(
    ("visible", "indices"), [("1", [1]), ("GPU-00", [0]), ("2,0", [0, 2]), ("-1", []), (None, [0, 1, 2])]
)
def test_only_visible_gpus_are_seen(open_made_up: Opener, visible: str | None, indices: list[int]) -> None:
    gpus, _ = open_made_up(visible, count=3)
    assert [device.index for device in gpus.list_devices()] == indices


def test_lost_gpu_is_trouble_and_the_others_go_on(open_made_up: Opener) -> None:
    gpus, fake = open_made_up(count=3)
    read_until(gpus, lambda reading: reading is not None)
    assert gpus.trouble == ""

    fake.change(lost=[1])
    reading = read_until(gpus, lambda reading: bool(gpus.trouble))
    assert [figures.index for figures in reading.devices] == [0, 2]
    assert "GPU 1 is lost" in gpus.trouble
    gpus.close()
    assert gpus.trouble == ""


def test_xid_of_the_hardware_is_trouble_and_of_the_application_is_not(open_made_up: Opener) -> None:
    gpus, fake = open_made_up()
    read_until(gpus, lambda reading: reading is not None)
    fake.change(xids=[[0, 31]])
    reading = read_until(gpus, lambda reading: bool(reading and reading.errors))
    assert [(error.device, error.code) for error in reading.errors] == [(0, 31)]
    assert gpus.trouble == ""
    fake.change(xids=[[1, 79]])
    read_until(gpus, lambda reading: bool(reading and reading.errors))
    assert "GPU 1 reported Xid 79: it has fallen off the bus." in gpus.trouble
    assert describe_failure(0, 13) == ""


def test_hang_is_a_gap_and_the_figures_come_back(open_made_up: Opener) -> None:
    gpus, fake = open_made_up(deadlines=QUICK)
    gpus.list_devices()
    sampler = Sampler(gpus, lambda: None, period_s=0.1)
    sampler.start()
    seen = []

    def collect_until(wanted: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not wanted():
            assert time.monotonic() < deadline, seen[-3:]
            time.sleep(0.05)
            seen.extend(sampler.drain().samples)

    collect_until(lambda: bool(seen) and bool(seen[-1].devices))
    first = find_reader().pid
    fake.change(hang=True)
    collect_until(lambda: seen[-1].gap_s > 0.5)
    assert seen[-1].devices == ()
    assert seen[-1].memory_bytes > 0  # the node's own figures go on
    fake.change(hang=False)
    collect_until(lambda: bool(seen[-1].devices))
    assert seen[-1].gap_s == 0
    assert is_gone(first)
    assert sampler.stop() == ""


def test_last_look_sees_what_the_processes_died_of(open_made_up: Opener) -> None:
    gpus, fake = open_made_up()
    read_until(gpus, lambda reading: reading is not None)
    sampler = Sampler(gpus, lambda: None, period_s=600.0)
    sampler.start()
    fake.change(lost=[1])
    assert "GPU 1 is lost" in sampler.stop()
    assert gpus.trouble == ""


def test_driver_that_hangs_again_and_again_is_trouble(open_made_up: Opener) -> None:
    gpus, fake = open_made_up(deadlines=QUICK)
    read_until(gpus, lambda reading: reading is not None)
    fake.change(hang=True)
    read_until(gpus, lambda reading: bool(gpus.trouble))
    assert "NVML does not answer (no answer within 1 s)" in gpus.trouble
    fake.change(hang=False)
    read_until(gpus, lambda reading: reading is not None)
    assert gpus.trouble == ""  # it did not hang for good


def test_hang_while_the_node_is_described_leaves_a_node_without_gpus(open_made_up: Opener) -> None:
    gpus, _ = open_made_up(deadlines=Deadlines(start_s=1.0), hang=True)
    assert gpus.list_devices() == ()
    assert "NVML does not answer" in gpus.trouble


def test_reader_that_dies_is_started_again(open_made_up: Opener) -> None:
    gpus, _ = open_made_up()
    read_until(gpus, lambda reading: reading is not None)
    first = find_reader()
    first.kill()
    read_until(gpus, lambda reading: reading is None)
    read_until(gpus, lambda reading: reading is not None)
    assert find_reader().pid != first.pid


def test_reader_dies_with_its_agent_even_while_it_hangs(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path)
    program = (
        "import os, time; from agent.devices.gpus import ChildGpus; g = ChildGpus(None, os.environ)\n"
        "while g.sample() is None: pass\n"
        "print(g._child.process.pid, flush=True)\n"
        "while True: g.sample()"
    )
    agent = subprocess.Popen([sys.executable, "-c", program], env=fake.environment, stdout=subprocess.PIPE)
    try:
        reader = int(agent.stdout.readline())
        fake.change(hang=True)
        time.sleep(0.3)
    finally:
        agent.send_signal(signal.SIGKILL)
        agent.communicate()
    deadline = time.monotonic() + 30
    while not is_gone(reader):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_reader_knows_no_token_and_loads_nothing_heavy(tmp_path: Path) -> None:
    from agent.devices.gpus import open_gpus

    environment = FakeNvml(tmp_path).environment | {"ADVISOR_AGENT_TOKEN": "canary"}
    gpus = open_gpus(None, environment)
    read_until(gpus, lambda reading: reading is not None)
    reader = find_reader()
    assert "canary" not in " ".join((*reader.environ().values(), *reader.cmdline()))
    # An interpreter with pydantic in it needs twice as much.
    assert reader.memory_full_info().uss < 20 * 2**20
    gpus.close()


def test_foreign_process_is_found_and_left_alone(open_made_up: Opener) -> None:
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        gpus, fake = open_made_up(
            processes=[
                {"device": 1, "pid": sleeper.pid, "memory_bytes": 3 * 2**30},
                {"device": 0, "pid": 2**22 + 7},
            ]
        )
        found = find_foreign_load(gpus, lambda _: False, wait_s=0.5)
        assert f"GPU 1: sleep (process {sleeper.pid} of " in found
        assert "3.0 GiB" in found
        assert f"process {2**22 + 7}, which is not visible from here" in found
        assert sleeper.poll() is None
        fake.change(processes=[])
        assert find_foreign_load(gpus, lambda _: False, wait_s=0.5) == ""
    finally:
        sleeper.kill()
        sleeper.wait()


def test_process_that_is_about_to_leave_is_waited_for(open_made_up: Opener) -> None:
    gpus, fake = open_made_up(processes=[{"device": 0, "pid": os.getpid()}])
    asked = []

    def wait(_: float) -> bool:
        asked.append(1)
        if len(asked) == 3:
            fake.change(processes=[])
        return False

    assert find_foreign_load(gpus, wait, wait_s=60.0) == ""
    assert len(asked) >= 3


def test_driver_that_hangs_is_no_foreign_load(open_made_up: Opener) -> None:
    gpus, _ = open_made_up(deadlines=Deadlines(start_s=0.6, restart_s=0.6, answer_s=0.6), hang=True)
    assert find_foreign_load(gpus, lambda _: False) == ""
    assert "NVML does not answer" in gpus.trouble
