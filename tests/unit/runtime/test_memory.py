"""What memory is free, and whether a copy of the training fits into it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from fleet_advisor_runtime.levers.lever import Training  # noqa: E402
from fleet_advisor_runtime.observe.memory import count_free_host_bytes, count_room_at_peak  # noqa: E402
from fleet_advisor_runtime.races.snapshot import count_snapshot_bytes, explain_no_snapshot  # noqa: E402

pytestmark = pytest.mark.thorough

MIB = 2**20
FREE = {"proc/meminfo": "MemTotal: 99999 kB\nMemAvailable: 8192 kB\n"}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        (FREE, 8 * MIB),
        (
            # Version 2: the limit of the group around this process's own counts too.
            {
                **FREE,
                "proc/self/cgroup": "0::/job/step\n",
                "sys/fs/cgroup/job/step/memory.max": "max\n",
                "sys/fs/cgroup/job/step/memory.current": "1048576\n",
                "sys/fs/cgroup/job/memory.max": str(6 * MIB),
                "sys/fs/cgroup/job/memory.current": str(2 * MIB),
            },
            4 * MIB,
        ),
        (
            {
                **FREE,
                "proc/self/cgroup": "9:cpu,cpuacct:/x\n8:memory:/slurm\n",
                "sys/fs/cgroup/memory/slurm/memory.limit_in_bytes": str(5 * MIB),
                "sys/fs/cgroup/memory/slurm/memory.usage_in_bytes": str(4 * MIB),
            },
            1 * MIB,
        ),
        ({}, 0),
    ],
    ids=["machine", "version 2", "version 1", "unknown"],
)
def test_free_memory_is_that_of_the_tightest_group(files: dict[str, str], free: int, tmp_path: Path) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert count_free_host_bytes(str(tmp_path)) == free


@pytest.mark.parametrize("said", [None, "4"])
def test_a_ranks_part_of_free_memory_is_that_of_the_ranks_here_whatever_its_launcher_says(
    said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if said:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", said)
    room = count_room_at_peak(torch.device("cpu"), 2)
    assert room == pytest.approx(count_free_host_bytes() / 2, rel=0.3)
    assert count_room_at_peak(torch.device("cpu")) == pytest.approx(room * 2 / int(said or 1), rel=0.3)


def test_a_snapshot_that_a_node_has_no_memory_for_is_refused() -> None:
    model = torch.nn.Linear(256, 256, bias=False)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 256)).sum().backward()
    optimizer.step()
    training = Training([], [optimizer], sharded=[model])
    weights = 256 * 256 * 4
    assert count_snapshot_bytes(training) == pytest.approx(3 * weights, abs=8)
    assert explain_no_snapshot(training, 8, 0) is None
    assert explain_no_snapshot(training, 8, 2 * 8 * 3 * weights + 1024) is None
    sentence = explain_no_snapshot(training, 8, 2 * 8 * 3 * weights - 1024)
    assert sentence is not None
    assert "saved in host memory first" in sentence
    assert "8 ranks" in sentence


def test_every_knob_that_changes_training_is_refused_then() -> None:
    from fleet_advisor_runtime.levers.registry import Levers
    from fleet_advisor_runtime.loading.reading import Reading

    levers = Levers(0, 2, 2, torch.device("cpu"), SimpleNamespace(), {}, Reading())
    refused = levers.refuse_inexact("no room")
    assert {"amp", "localsgd", "gradient_merge", "fp16_allreduce"} <= set(refused)
    assert "fuse_grad_size_in_MB" not in refused
