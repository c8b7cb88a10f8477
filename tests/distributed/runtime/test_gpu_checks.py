"""The checks of a GPU run for real where they can: the same code and scripts, with a CPU as the device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.catalogue import CHECKS
from tests.gpu.check import Judgement, choose_checks
from tests.gpu.real_bench import RealBench
from tests.gpu.run_checks import find_machine
from tests.no_gpus import NoGpus

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RealBench]:
    machine = find_machine("cpu", NoGpus(), os.environ)
    bench = RealBench(machine, NoGpus(), tmp_path / "bench", os.environ)
    yield bench
    bench.close()


def run(bench: RealBench, name: str) -> Judgement:
    [check] = choose_checks(CHECKS, name)
    return check.run(bench)


# It looks for what is left in /dev/shm, where tests beside it have their own folders.
KILL = pytest.param("kill", marks=pytest.mark.alone)


@pytest.mark.parametrize("name", ["snapshots", KILL])
def test_what_needs_no_card_holds(name: str, bench: RealBench) -> None:
    found = run(bench, name)
    assert not found.faults
    assert found.measured


def test_what_the_runtime_costs_is_measured(bench: RealBench) -> None:
    """Whether it is little is for a machine that nobody else uses."""
    assert len(run(bench, "intrusion").measured) == 1


@pytest.mark.calm
def test_trace_and_runtime_tell_communicating_from_computing(bench: RealBench) -> None:
    found = run(bench, "diagnosis")
    assert not found.left_out, "the trace shows gloo's part"
    shares = [
        float(figure.split("exposed ")[1].split("%")[0])
        for figure in found.measured
        if "by the runtime" in figure
    ]
    assert len(shares) == 2
    assert shares[0] > shares[1], found.measured
