"""The pieces of the levers that change training: intervals, the gate before an update, outputs, the loss's factor."""

from __future__ import annotations

import collections
import copy
import dataclasses
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fleet_advisor_runtime.levers.computation.mixed_precision import are_finite, to_float32  # noqa: E402
from fleet_advisor_runtime.levers.lever import Training  # noqa: E402
from fleet_advisor_runtime.levers.micro_batches.micro_batches import MicroBatches  # noqa: E402
from fleet_advisor_runtime.levers.micro_batches.split_forward import SplitForward  # noqa: E402
from fleet_advisor_runtime.levers.reduction.adaptive_local_sgd import AdaptiveLocalSgd, choose_interval  # noqa: E402
from fleet_advisor_runtime.levers.reduction.gradient_merge import GradientMerge  # noqa: E402
from fleet_advisor_runtime.levers.reduction.local_sgd import LocalSgd  # noqa: E402
from fleet_advisor_runtime.levers.reduction.step_gate import StepGate  # noqa: E402
from fleet_advisor_runtime.observe.clock import CpuClock  # noqa: E402
from fleet_advisor_runtime.observe.precision import ScriptPrecision  # noqa: E402
from fleet_advisor_runtime.observe.recorder import multiply_loss  # noqa: E402
from fleet_advisor_runtime.races.snapshot import TrainingSnapshot  # noqa: E402

from tests.unit.runtime.lone_rank import open_lone_rank  # noqa: E402


@pytest.mark.parametrize(
    ("initial", "first", "now", "chosen"),
    [
        (4, (2.0, 0.1), (2.0, 0.1), 4),
        (4, (2.0, 0.1), (0.5, 0.1), 2),
        (4, (2.0, 0.1), (2.0, 0.01), 13),
        (4, (2.0, 0.1), (2.0, 0.0001), 16),
        (1, (2.0, 0.1), (1.9, 0.1), 1),
        (4, (2.0, 0.1), (math.nan, 0.1), 5),
        (4, (2.0, 0.0), (1.0, 0.1), 5),
        (4, (-2.0, 0.1), (1.0, 0.1), 5),
    ],
)
def test_the_interval_follows_loss_and_learning_rate_up_to_sixteen(
    initial: int, first: tuple[float, float], now: tuple[float, float], chosen: int
) -> None:
    assert choose_interval(initial, first, now, current=5) == chosen


@pytest.mark.parametrize("delays", [False, True])
def test_steps_without_reduction_are_refused_where_a_hook_reduces_in_every_backward(delays: bool) -> None:
    with open_lone_rank():
        net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        names = {
            "delay_all_reduce_named_params": [*net.named_parameters()][:1],
            "param_to_hook_all_reduce": net[0].weight,
        }
        ddp = torch.nn.parallel.DistributedDataParallel(net, **names if delays else {})
        training = Training([ddp], [])
        clock = CpuClock()
        for lever in (
            LocalSgd(clock),
            AdaptiveLocalSgd(clock),
            GradientMerge(),
            MicroBatches(SplitForward()),
        ):
            refusals = lever.list_refusals(training)
            assert set(refusals) == (set(lever.knobs) if delays else set())
            assert all("delay_all_reduce_named_params" in why for why in refusals.values())


@pytest.mark.parametrize("with_scheduler", [False, True])
def test_a_held_back_step_changes_nothing_and_the_gate_leaves_no_trace(with_scheduler: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    if with_scheduler:
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
    own = dict(optimizer.__dict__)
    allowed: list[bool] = []
    gate = StepGate(lambda _: allowed.pop(0))
    gate.guard([optimizer])
    weight.grad = torch.ones(1)

    allowed.append(False)
    optimizer.step()
    assert weight.item() == 1.0

    def closure() -> Any:
        loss = (3 * weight).sum()
        optimizer.zero_grad()
        loss.backward()
        return loss

    allowed.append(False)
    assert optimizer.step(closure).item() == 3.0
    assert (weight.item(), weight.grad.item()) == (1.0, 3.0)
    allowed.append(True)
    assert optimizer.step(closure=closure).item() == 3.0
    assert weight.item() == -0.5

    gate.guard([])
    assert optimizer.__dict__.get("step") == own.get("step")
    optimizer.step()
    assert weight.item() == -2.0


def test_a_scheduler_made_over_the_gate_keeps_working() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    gate = StepGate(lambda _: False)
    gate.guard([optimizer])
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    weight.grad = torch.ones(1)
    optimizer.step()
    assert weight.item() == 1.0


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True)
class Output:
    logits: Any
    name: str


def test_outputs_come_back_in_float32_in_whatever_holds_them() -> None:
    half, whole, double = (
        torch.ones(1, dtype=dtype) for dtype in (torch.bfloat16, torch.int64, torch.float64)
    )
    given = {"a": [half, (whole, double)], "b": Point(half, 1), "c": Output(half, "name")}
    kept = copy.copy(given)
    found = to_float32(given, torch.bfloat16)
    assert found["a"][0].dtype is torch.float32
    assert [tensor.dtype for tensor in found["a"][1]] == [torch.int64, torch.float64]
    assert (type(found["b"]), found["b"].x.dtype, found["b"].y) == (Point, torch.float32, 1)
    assert (found["c"].logits.dtype, found["c"].name) == (torch.float32, "name")
    assert given == kept
    assert given["c"].logits.dtype is torch.bfloat16


def test_an_overflow_is_found_wherever_it_is() -> None:
    sparse = torch.sparse_coo_tensor([[0]], [math.nan], (4,), check_invariants=True)
    fine = torch.ones(3)
    assert are_finite([None, fine, torch.sparse_coo_tensor([[0]], [1.0], (4,), check_invariants=True)])
    assert not are_finite([fine, torch.tensor([1.0, math.inf])])
    assert not are_finite([fine, sparse])
    assert are_finite([None])


@pytest.mark.parametrize("how", ["alone", "positional", "named", "several"])
def test_the_loss_counts_by_its_factor(how: str) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    roots: Any = (weight * 3).sum()
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if how == "positional":
        roots, args = weight * 3, (torch.ones(2), True)
    elif how == "named":
        roots, kwargs = weight * 3, {"grad_tensors": [torch.ones(2)], "retain_graph": True}
    elif how == "several":
        roots = [(weight * 1).sum(), (weight * 2).sum()]
    roots, args, kwargs = multiply_loss(roots, args, kwargs, 0.5)
    torch.autograd.backward(roots, *args, **kwargs)
    assert weight.grad.tolist() == [1.5, 1.5]


def test_a_root_that_backward_refuses_stays_refused() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    roots, args, kwargs = multiply_loss(weight * 3, (), {}, 0.5)
    with pytest.raises(RuntimeError, match="scalar outputs"):
        torch.autograd.backward(roots, *args, **kwargs)


def test_the_snapshot_brings_back_all_that_training_changes() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    alone = torch.nn.Parameter(torch.ones(1))
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.Adam([*model.parameters(), alone], lr=0.1)
    precision = ScriptPrecision()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(1))
    precision.note_scaler(scaler)

    def train() -> None:
        optimizer.zero_grad()
        (model(torch.randn(4, 2)).pow(2).sum() + alone.sum()).backward()
        optimizer.step()
        average.update_parameters(model)

    def describe() -> list[Any]:
        parts = [model, average, optimizer, scaler]
        return [*(copy.deepcopy(part.state_dict()) for part in parts), alone.item(), torch.get_rng_state()]

    train()
    before = describe()
    snapshot = TrainingSnapshot(Training([model], [optimizer], precision))
    train()
    optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["foreach"] = 0.01, True
    scaler.update(2.0)
    assert repr(describe()) != repr(before)
    snapshot.restore()
    assert optimizer.param_groups[0].pop("foreach") is True, "flags belong to the levers"
    before[2]["param_groups"][0].pop("foreach")
    assert repr(describe()) == repr(before)
