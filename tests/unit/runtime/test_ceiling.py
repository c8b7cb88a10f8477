"""Matrix operations of a step, counted by torch's formulas, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from agent.runtime.calibrating.ceiling import Ceiling, OperationCount, explain_no_count, is_unknown  # noqa: E402
from agent.runtime.levers.lever import Training  # noqa: E402

CPU = torch.device("cpu")


def test_a_step_counts_what_its_products_multiply_forward_and_backward() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    rows = torch.randn(6, 8)
    ceiling = Ceiling(Training([], [], plain=[net]), CPU)
    net(rows).square().mean().backward()
    ceiling.stop()
    net(rows)  # after the step
    ceiling.measure_rate()
    told = ceiling.read()
    assert told["operations"] == 2 * 6 * (2 * 8 * 32 + 3 * 32 * 4)
    assert (told["number_format"], told["refusal"]) == ("float32", "")
    assert told["rate"] > 0


def test_attention_on_a_cpu_is_counted_and_a_recurrent_layer_is_missed() -> None:
    with OperationCount() as count:
        query = torch.randn(2, 4, 16, 16, requires_grad=True)
        torch.nn.functional.scaled_dot_product_attention(query, query, query).sum().backward()
    forward = 2 * 2 * (2 * 4) * 16 * 16 * 16
    assert (count.by_format, count.missed) == ({torch.float32: 3.5 * forward}, "")
    with OperationCount() as count:
        torch.nn.LSTM(4, 4)(torch.randn(3, 2, 4))
    assert is_unknown(count.missed)


@pytest.mark.parametrize("groups", [1, 4, 16])
def test_gradients_of_a_convolution_take_twice_its_forward_pass_whatever_its_groups(groups: int) -> None:
    layer = torch.nn.Conv2d(16, 16, 3, groups=groups, padding=1)
    images = torch.randn(2, 16, 8, 8, requires_grad=True)
    with OperationCount() as count:
        layer(images).sum().backward()
    # torch.utils.flop_counter of 2.13.0 counts 17 forward passes for the gradients of 16 groups.
    assert count.by_format == {torch.float32: 3 * 2 * (2 * 8 * 8) * 16 * (16 // groups) * 9}


@pytest.mark.parametrize(
    ("name", "unknown"),
    [
        ("aten._grouped_mm", True), ("aten._thnn_fused_lstm_cell", True), ("mine.kernel", True),
        ("aten.lgamma", False), ("aten.upsample_bilinear2d", False), ("c10d.allreduce_", False),
    ],
)  # fmt: skip
def test_operators_that_may_multiply_are_told_by_their_names(name: str, unknown: bool) -> None:
    assert is_unknown(name) is unknown


def test_devices_without_a_product_are_refused() -> None:
    assert (
        explain_no_count(Training([], []), SimpleNamespace(type="xpu"))
        == "how fast xpu multiplies is not measured"
    )
