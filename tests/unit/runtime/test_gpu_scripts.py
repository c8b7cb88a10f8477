"""The scripts of the GPU checks that only a card can run, executed on a recording one: every name and argument."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from tests.unit.runtime.nccl_card import NcclCard  # noqa: E402

SCRIPTS = Path(__file__).parents[2] / "gpu" / "scripts"


class Event:
    """A CUDA event that measures nothing unless it was made for that, and recorded."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.times, self.recorded = enable_timing, False

    def record(self, stream: Any = None) -> None:
        self.recorded = True

    def elapsed_time(self, end: Event) -> float:
        assert all((self.times, end.times, self.recorded, end.recorded))
        return 3.0


class Cuda:
    """torch.cuda with one card: nothing is there that torch does not have."""

    def __init__(self, card: NcclCard) -> None:
        own = {
            "Event": Event,
            "device_count": lambda: 1,
            "empty_cache": lambda: None,
            "mem_get_info": lambda device: (card.free, 80 * 2**30),
            "set_device": lambda device: None,
            "synchronize": lambda device=None: None,
        }
        assert all(hasattr(torch.cuda, name) for name in own)
        vars(self).update(own)


class Torch:
    """torch, whose device is the CPU whatever is asked for."""

    def __init__(self, card: NcclCard) -> None:
        self.cuda = Cuda(card)

    def device(self, kind: str, index: int = 0) -> Any:
        assert (kind, index) == ("cuda", 0)
        return torch.device("cpu")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NcclCard]:
    for name, value in {
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "RANK": "0",
        "OUT": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(SCRIPTS))
    begin, end = dist.init_process_group, dist.destroy_process_group
    card = NcclCard(monkeypatch)

    def init(backend: str) -> None:
        assert backend == "nccl"
        begin("gloo", store=dist.HashStore(), rank=0, world_size=1)

    monkeypatch.setattr(dist, "init_process_group", init)
    monkeypatch.setattr(
        dist, "destroy_process_group", lambda group=None: end() if group is None else card.destroy(group)
    )
    yield card
    for name in ("placement", "collectives", "nccl_settings"):
        sys.modules.pop(name, None)
    if dist.is_initialized():
        end()


def run(name: str, card: NcclCard, monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[dict[str, Any]]:
    script, placement = importlib.import_module(name), importlib.import_module("placement")
    for module in (script, placement):
        monkeypatch.setattr(module, "torch", Torch(card))
    monkeypatch.setattr(sys, "argv", [name, "--mebibytes", "1"])
    script.main()
    return [json.loads(line) for line in (folder / "notes.0").read_text().splitlines()]


def test_a_communicator_is_made_used_and_given_back(
    card: NcclCard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *times, group = run("collectives", card, monkeypatch, tmp_path)
    assert {line["event_s"] for line in times} == {0.003}
    assert group == {"is_right": True, "is_configured": True, "group_bytes": card.each, "kept_bytes": 0}


def test_every_setting_is_one_that_nccl_takes(
    card: NcclCard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def profile(activities: Any) -> Profile:
        card.free -= 0 if Profile.is_there else 2**28
        Profile.is_there = True
        return Profile()

    Profile.is_there = False
    monkeypatch.setattr(importlib.import_module("nccl_settings"), "profile", profile)
    lines = run("nccl_settings", card, monkeypatch, tmp_path)
    assert [sorted(line["asked"]) for line in lines] == [
        [],
        ["max_ctas"],
        ["max_ctas", "min_ctas"],
        ["cga_cluster_size", "max_ctas"],
    ]
    assert all(line["is_right"] and line["blocks"] == [24] and not line["kept_bytes"] for line in lines)


class Profile:
    """torch.profiler's trace of one kernel of NCCL's, as Kineto writes it."""

    is_there = False
    """Whether it has taken its memory of the card."""

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def export_chrome_trace(self, path: str) -> None:
        kernel = {
            "ph": "X",
            "cat": "kernel",
            "name": "ncclDevKernel_AllReduce_Sum_f32_RING_SIMPLE(ncclDevKernelArgsStorage<4096ul>)",
            "args": {"grid": [24, 1, 1], "block": [544, 1, 1]},
        }
        others = [
            {"ph": "X", "cat": "cpu_op", "name": "nccl:all_reduce", "args": {}},
            {"ph": "M", "name": "x"},
        ]
        Path(path).write_text(json.dumps({"traceEvents": [kernel, *others]}))
