"""What models share, and what is known of each: sums held against plain ones, lanes, averages, awaited backwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from fleet_advisor_runtime.levers.lever import RelaunchNeeded, Training  # noqa: E402
from fleet_advisor_runtime.levers.reduction import local_sgd, reduction_refusals  # noqa: E402
from fleet_advisor_runtime.levers.reduction.communicators import Communicators  # noqa: E402
from fleet_advisor_runtime.levers.reduction.gradient_reduction import GradientReduction  # noqa: E402
from fleet_advisor_runtime.levers.reduction.local_sgd import LocalSgd  # noqa: E402
from fleet_advisor_runtime.levers.reduction.sum_check import SumCheck  # noqa: E402
from fleet_advisor_runtime.observe.clock import CpuClock  # noqa: E402
from fleet_advisor_runtime.observe.models import Models, trains  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from tests.unit.runtime.lone_rank import kept, open_lone_rank  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture
def group() -> Iterator[Any]:
    with open_lone_rank():
        yield dist.group.WORLD


class Bucket:
    def __init__(self, numbers: Any, index: int = 0, is_last: bool = True) -> None:
        self._buffer, self._index, self._is_last = numbers, index, is_last

    def buffer(self) -> Any:
        return self._buffer

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._is_last

    def parameters(self) -> list[Any]:
        return [self._buffer]


def reduce(check: SumCheck, own: Any, result: Any, wire_format: Any = None, **place: Any) -> None:
    watched = check.watch(Bucket(own, **place), wire_format)
    future: Any = torch.futures.Future()
    future.set_result(result)
    if watched is not None:
        assert future.then(watched.keep).wait() is result


NUMBERS = [0.1, -3.0, 1e-9, 2e5]


@pytest.mark.parametrize(
    ("own", "found", "wire_format", "is_wrong"),
    [
        (NUMBERS, NUMBERS, None, False),
        (NUMBERS, [0.1, -3.0, 1.1e-9, 2e5], None, True),
        (NUMBERS, [0.1, -2.0, 1e-9, 2e5], None, True),
        (NUMBERS, [0.1001, -3.0, 0.0, float("inf")], torch.float16, False),
        (NUMBERS, [0.2, -3.0, 0.0, float("inf")], torch.float16, True),
        (NUMBERS, [0.1, float("nan"), 1e-9, 2e5], None, True),
        ([0.1, float("inf")], [0.1, float("nan")], None, False),
        ([0.1, float("nan")], [0.2, float("nan")], None, True),
    ],
)
def test_a_sum_is_held_against_the_plain_one_within_its_number_format(
    own: list[float], found: list[float], wire_format: Any, is_wrong: bool, group: Any
) -> None:
    check = SumCheck(group, 3)
    reduce(check, torch.tensor(own), torch.tensor(found), wire_format)
    count, sentence = check.judge()
    assert count == 1
    assert bool(sentence) == is_wrong
    assert not is_wrong or "1 of the first 1 sums" in sentence


def test_only_the_first_passes_are_checked_and_a_large_bucket_in_parts(group: Any) -> None:
    check = SumCheck(group, 2)
    large = torch.randn(300_001)
    for _ in range(4):
        reduce(check, large, large, index=0, is_last=False)
        reduce(check, torch.ones(3, dtype=torch.complex64), torch.ones(3, dtype=torch.complex64), index=1)
    assert check.judge() == (4, "")
    wrong = SumCheck(group, 1)
    reduce(wrong, large, large.roll(1))
    assert wrong.judge()[1]


def test_models_of_one_group_share_its_companions_and_lanes_and_other_groups_have_others(group: Any) -> None:
    other = dist.new_group([0])
    kept.append(other)
    own = Communicators(0, 1, CPU)
    lanes = own.provide_lanes(2, group)
    assert own.provide_lanes(1, group) == lanes[:1]
    assert own.provide_flat(1) == own.provide_flat(1, (), group)
    assert own.provide_flat(1, (), other) != own.provide_flat(1, (), group)
    [apart] = own.provide_lanes(1, other)
    assert apart not in lanes
    order: list[int] = []
    done = [lanes[0].submit(lambda n=n: order.append(n) or torch.zeros(1)) for n in range(20)]
    torch.futures.wait_all(done)
    assert order == list(range(20))
    own._rest()
    assert own.provide_lanes(1, group) != lanes[:1], "closed"
    own._rest()


def test_several_groups_get_no_thread_each_on_nccl(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ddp:
        def __init__(self, process_group: Any) -> None:
            self.process_group = process_group

    one, two = Ddp(object()), Ddp(object())
    monkeypatch.setattr(reduction_refusals, "find_backend", lambda group, device: "nccl")
    assert "over 2 process groups" in str(reduction_refusals.refuse_together([one, two], CPU))
    assert reduction_refusals.refuse_together([one, Ddp(one.process_group)], CPU) == {}
    monkeypatch.setattr(reduction_refusals, "find_backend", lambda group, device: "gloo")
    assert reduction_refusals.refuse_together([one, two], CPU) == {}


def test_a_model_that_learns_now_and_then_only_is_averaged_too(
    group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    averaged: list[Any] = []
    monkeypatch.setattr(local_sgd, "average_parameters", averaged.append)
    usual, rare = (DistributedDataParallel(torch.nn.Linear(2, 2)) for _ in range(2))
    training = Training([usual], [])
    lever = LocalSgd(CpuClock())
    lever.switch({"localsgd": True, "localsgd_k_steps": 6}, training)
    for step in range(7):
        for ddp in (usual, rare) if step == 1 else (usual,):
            lever.before_forward(ddp)
            lever.after_forward(ddp)
        lever.end_step(training)
    assert averaged == [usual, rare]
    lever.end_segment(training)
    assert averaged == [usual, rare]


def test_a_model_is_awaited_from_its_forward_to_its_backward(group: Any) -> None:
    models = Models()
    ddp = DistributedDataParallel(torch.nn.Linear(2, 2))
    models.add_replica(ddp)
    outputs: list[Any] = []
    for wrap in (lambda output: {"logits": (output,)}, lambda output: output):
        output = ddp(torch.ones(1, 2))
        models.await_backward(ddp, wrap(output))
        outputs.append(output)
    assert models.list_awaited() == {id(ddp): [outputs[1]]}
    outputs[1].sum().backward()
    assert not models.list_awaited()
    with ddp.no_sync():
        models.await_backward(ddp, ddp(torch.ones(1, 2)))
    assert not models.list_awaited(), "its backward reduces nothing"
    models.await_backward(ddp, ddp(torch.ones(1, 2)).detach())
    assert not models.list_awaited()
    output = ddp(torch.ones(1, 2))
    models.await_backward(ddp, output)
    output = output.sum()
    assert models.list_awaited() == {id(ddp): [None]}, "the loss alone keeps the graph"
    with torch.no_grad():
        models.await_backward(ddp, ddp(torch.ones(1, 2)))
    assert models.list_awaited() == {id(ddp): [None]}, "an evaluation between"
    del output
    assert not models.list_awaited(), "its graph is gone: no backward can come"
    outputs.append(ddp(torch.ones(1, 2)))
    models.await_backward(ddp, outputs[-1])
    del ddp, outputs
    import gc

    gc.collect()
    assert not models.list_awaited()


class PartlyUsed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = (torch.nn.Linear(2, 2) for _ in range(2))

    def forward(self, batch: Any) -> Any:
        return self.used(batch)


@pytest.mark.parametrize("keeps_live", [False, True])
@pytest.mark.parametrize("finds_unused", [False, True])
def test_a_reducer_exchanged_between_forward_and_backward_reduces_all_the_same(
    keeps_live: bool, finds_unused: bool, group: Any
) -> None:
    model = PartlyUsed() if finds_unused else torch.nn.Linear(2, 2)
    ddp = DistributedDataParallel(model, find_unused_parameters=finds_unused)
    lever = GradientReduction(0, 1, 1, CPU)
    for _ in range(3):
        ddp(torch.ones(1, 2)).sum().backward()
    lever.list_refusals(Training([ddp], []))
    lever.keeps_live = keeps_live
    for strategy in ({"sync_nccl_allreduce": True}, {}, {"sync_nccl_allreduce": True}, {"nccl_comm_num": 2}):
        output = ddp(torch.ones(1, 2))
        lever.switch(strategy, Training([ddp], [], awaited={id(ddp): [output]}))
        lever.begin_timing()
        output.sum().backward()
        state = lever._replicas[ddp].state
        assert state is None or sum(state.counts["buckets"]) == 1, strategy
        output = ddp(torch.ones(1, 2))
        output.sum().backward()
        assert state is None or sum(state.counts["buckets"]) == 2
    lever.communicators._rest()


def test_a_reducer_is_exchanged_after_a_backward_inside_the_forward_whose_loss_the_script_keeps(
    group: Any,
) -> None:
    """Lightning's manual optimisation prepares the reducer for each backward; DDP does again for what it returns."""

    class Manual(PartlyUsed):
        def forward(self, batch: Any) -> Any:
            for net in (self.used, self.unused):
                loss = net(batch).sum()
                ddp.reducer._rebuild_buckets()
                ddp.reducer.prepare_for_backward([loss])
                loss.backward()
            return {"loss": loss}

    ddp = DistributedDataParallel(Manual(), find_unused_parameters=True)
    models, lever = Models(), GradientReduction(0, 1, 1, CPU)
    models.add_replica(ddp)
    kept_output = None
    for strategy in ({}, {"sync_nccl_allreduce": True}, {"fuse_grad_size_in_MB": 0.25}, {}):
        training = Training([ddp], [], awaited=models.list_awaited())
        assert lever.list_refusals(training).get("fuse_grad_size_in_MB") is None
        lever.switch(strategy, training)
        lever.begin_timing()
        kept_output = ddp(torch.ones(1, 2))
        models.await_backward(ddp, kept_output)
        state = lever._replicas[ddp].state
        assert state is None or sum(state.counts["buckets"]) == 2, strategy
    assert kept_output is not None
    lever.communicators._rest()


def test_a_reducer_that_cannot_look_for_unused_parameters_again_cannot_be_exchanged_there(group: Any) -> None:
    ddp = DistributedDataParallel(torch.nn.Linear(2, 2), find_unused_parameters=True)
    lever = GradientReduction(0, 1, 1, CPU)
    training = Training([ddp], [], awaited={id(ddp): [None]})
    refusals = lever.list_refusals(training)
    assert "find_unused_parameters=True wait for its backward" in refusals["fuse_grad_size_in_MB"]
    with pytest.raises(RelaunchNeeded, match="no moment at which its reducer could be exchanged"):
        lever.switch({"sync_nccl_allreduce": True}, training)


def test_the_mode_of_compiled_models_is_named_where_nothing_is_compiled(group: Any) -> None:
    config = pytest.importorskip("torch._dynamo.config")
    with config.patch(optimize_ddp="python_reducer"):
        ddp = DistributedDataParallel(torch.nn.Linear(2, 2))
    training = Training([ddp], [])
    refusal = GradientReduction(0, 1, 1, CPU).list_refusals(training)["fuse_grad_size_in_MB"]
    assert "the model is not compiled" in refusal
    ddp.module.compile(backend="eager")
    refusal = GradientReduction(0, 1, 1, CPU).list_refusals(training)["fuse_grad_size_in_MB"]
    assert "python_reducer mode keeps no bucket plan" in refusal


def test_a_wrapper_that_a_validation_left_in_eval_mode_trains_as_what_is_inside() -> None:
    inside = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
    wrapper = torch.nn.Sequential(inside)
    assert trains(wrapper.train())
    wrapper.eval()
    assert not trains(wrapper)
    inside.train()
    assert trains(wrapper)
    inside.eval()[1].train()
    assert not trains(inside), "one layer of several is no whole"
