"""The buckets that the cost model predicts are those of DDP's own log, whether DDP deals its buckets anew or not."""

from __future__ import annotations

import importlib
from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from advisor.tuning.model.communication_schedule import plan_of  # noqa: E402
from advisor.tuning.model.timeline import MIB, Gradient, Line  # noqa: E402
from tests.unit.runtime.lone_rank import open_lone_rank  # noqa: E402
from tests.unit.tuning.measured_job import make_context, with_changes  # noqa: E402

WIDTHS = (128, 512, 256, 640, 384, 512, 192, 256)


def log_buckets(**arguments: Any) -> tuple[list[int], list[int]]:
    """DDP's buckets after two steps, and the bytes of the gradients in the order in which backward makes them."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(a, b, bias=False) for a, b in pairwise(WIDTHS)]
    with open_lone_rank():
        ddp = DistributedDataParallel(torch.nn.Sequential(*layers), **arguments)
        for _ in range(12):
            ddp(torch.ones(2, WIDTHS[0])).sum().backward()
        buckets, is_final = importlib.import_module(
            "fleet_advisor_runtime.levers.buckets.bucket_plan"
        ).read_buckets(ddp)
    assert is_final
    return buckets, [layer.weight.numel() * 4 for layer in layers[::-1]]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("searches", [False, True])
@pytest.mark.parametrize("size_mb", [None, 1.25])
def test_predicted_buckets_are_those_of_ddps_log(searches: bool, static: bool, size_mb: float | None) -> None:
    logged, sizes = log_buckets(find_unused_parameters=searches, static_graph=static, bucket_cap_mb=size_mb)
    line = Line(tuple(Gradient(float(size), (i + 1) / len(sizes), i) for i, size in enumerate(sizes)))
    context = make_context(ddp={"find_unused_parameters": searches, "static_graph": static})
    values = with_changes(
        context,
        fuse_grad_size_in_MB=size_mb or 25.0,
        last_comm_group_size_MB=size_mb or 1.0,
        find_unused_parameters=searches,
    )
    plan = plan_of(values, context.baseline, context.facts)
    assert plan is not None
    assert line.form_buckets(plan)[:, 0].tolist() == logged
    assert len(logged) > 1
    assert sum(logged) > 3 * MIB
