"""What exported code takes of a card, and how long the process groups that it makes wait."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from advisor.exporters import export


def test_the_reserved_block_fits_below_the_cap_with_room_for_small_tensors(
    advise, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch, space, card, taken = pytest.importorskip("torch"), {}, 80 * 2**30 + 12345, []
    content = export(*advise({"FLAGS_fraction_of_gpu_memory_to_use": 0.3}, backend="nccl"), "pytorch").content
    exec(compile(content, "ddp_strategy.py", "exec"), space)

    def take(size: int, **_: Any) -> None:
        """As torch's allocator does: in pieces of 2 MiB, and none beyond the cap."""
        taken.append(-(-size // 2**21) * 2**21)
        assert sum(taken) + 2**21 <= 0.3 * card, "CUDA out of memory"

    for name, answer in {
        "mem_get_info": (card, card),
        "memory_reserved": 0,
        "set_per_process_memory_fraction": None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(torch, "empty", take)
    parameter = SimpleNamespace(device=torch.device("cuda", 0))
    space["reserve_memory"](SimpleNamespace(module=SimpleNamespace(parameters=lambda: iter([parameter]))))
    assert taken[0] > 0.29 * card


def test_groups_of_the_exported_hook_wait_as_long_as_the_jobs_own(advise) -> None:
    torch = pytest.importorskip("torch")
    dist, space, patience = torch.distributed, {}, timedelta(hours=2)
    content = export(*advise({"sync_nccl_allreduce": True}, backend="gloo"), "pytorch").content
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=patience)
    try:
        exec(compile(content, "ddp_strategy.py", "exec"), space)
        ddp = SimpleNamespace(module=torch.nn.Linear(2, 2), process_group=dist.group.WORLD)
        [group] = space["Reduction"](ddp).flat
        assert space["find_timeout"](group, torch.device("cpu")) == patience
    finally:
        dist.destroy_process_group()
