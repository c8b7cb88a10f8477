"""What torch.utils.checkpoint computes again is counted, and kept where that trains the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.utils.checkpoint as checkpointing  # noqa: E402
from fleet_advisor_runtime import current, private_torch  # noqa: E402
from fleet_advisor_runtime.inject.recomputation import patch_recomputation  # noqa: E402
from fleet_advisor_runtime.levers.computation.activation_checkpointing import (  # noqa: E402
    KNOB,
    ActivationCheckpointing,
)
from fleet_advisor_runtime.levers.lever import Training  # noqa: E402
from fleet_advisor_runtime.levers.micro_batches.split_forward import SplitForward  # noqa: E402
from fleet_advisor_runtime.observe.clock import CpuClock  # noqa: E402
from fleet_advisor_runtime.observe.recomputation import Recomputation  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tests.unit.runtime.lone_rank import open_lone_rank  # noqa: E402

CPU = torch.device("cpu")
BOTH_WAYS = pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recomputation]:
    ends = [each.name for each in (private_torch.REPEATED, private_torch.REPEATED_IMPL)]
    patched = [(checkpointing, name) for name in ends if hasattr(checkpointing, name)]
    for owner, name in (*patched, (checkpointing.CheckpointFunction, "apply")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    patch_recomputation(lambda: False)
    found = Recomputation()
    current.set_current(SimpleNamespace(checkpoint=found.checkpoint))
    found.start(CpuClock(), CPU, [])
    yield found
    current.set_current(None)


@BOTH_WAYS
def test_one_inside_another_counts_once_and_is_kept_with_it(seen: Recomputation, reentrant: bool) -> None:
    calls = []

    def inner(x: Any) -> Any:
        calls.append(x)
        return x.exp()

    def outer(x: Any) -> Any:
        return checkpoint(inner, x.sin(), use_reentrant=reentrant).cos()

    leaf = torch.ones(2, requires_grad=True)
    checkpoint(outer, leaf, use_reentrant=reentrant).sum().backward()
    computed, gradient = len(calls), leaf.grad
    seen.stop(1)
    told = seen.describe(1)
    assert told["per_step"] == seen.repeated
    assert "test_recomputation.py:" in told["site"]
    seen.begin_counting()
    seen.keeps, leaf.grad = True, None
    checkpoint(outer, leaf, use_reentrant=reentrant).sum().backward()
    assert (len(calls) - computed, seen.kept, seen.repeated) == (1, 2, 0)
    assert torch.equal(leaf.grad, gradient)


def test_what_trains_nothing_today_trains_nothing_when_activations_are_kept(seen: Recomputation) -> None:
    layer = torch.nn.Linear(2, 2)
    for keeps in (False, True):
        seen.keeps = keeps
        out = checkpoint(layer, torch.ones(1, 2), use_reentrant=True)
        assert not out.requires_grad
    assert seen.kept == 0


def test_a_forward_s_own_context_stays_around_what_is_kept(seen: Recomputation) -> None:
    def contexts() -> tuple[Any, Any]:
        return torch.autocast("cpu", dtype=torch.bfloat16), contextlib.nullcontext()

    layer, seen.keeps = torch.nn.Linear(2, 2), True
    out = checkpoint(layer, torch.ones(1, 2), use_reentrant=False, context_fn=contexts)
    assert out.dtype == torch.bfloat16
    with pytest.raises(ZeroDivisionError):
        checkpoint(lambda _: 1 // 0, torch.ones(1), use_reentrant=False)


def test_parts_of_a_batch_are_still_computed_again(seen: Recomputation) -> None:
    seen.keeps = True
    with open_lone_rank():
        ddp = DistributedDataParallel(torch.nn.Linear(2, 2))
        splitting = SplitForward(2)
        for _ in range(5):
            splitting.run(ddp, (torch.ones(4, 2),), {}, DistributedDataParallel.forward).sum().backward()
    assert splitting.forwards
    assert not splitting.refusal
    assert seen.kept == seen.repeated == 0


def test_it_is_refused_where_memory_has_no_room_and_says_how_much_is_missing(seen: Recomputation) -> None:
    lever, training = ActivationCheckpointing(seen, CPU), Training([], [])
    assert "nothing to keep" in lever.list_refusals(training)[KNOB]
    leaf = torch.ones(2, requires_grad=True)
    checkpoint(torch.sin, leaf, use_reentrant=False).sum().backward()
    seen.stop(1)
    assert lever.list_refusals(training) == {}
    seen.kept_bytes = 2**60
    assert "take about 1.07e+09 GiB more" in lever.list_refusals(training)[KNOB]


def test_a_torch_that_ends_elsewhere_is_named_and_the_script_is_not_blamed(
    seen: Recomputation, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (private_torch.REPEATED.name, private_torch.REPEATED_IMPL.name):
        monkeypatch.delattr(checkpointing, name, raising=False)
    refusal = ActivationCheckpointing(seen, CPU).list_refusals(Training([], []))[KNOB]
    assert private_torch.REPEATED.name in refusal
    assert "keep activations" in refusal


def test_a_value_that_is_none_and_steps_without_a_call_prove_nothing(seen: Recomputation) -> None:
    lever, training = ActivationCheckpointing(seen, CPU), Training([], [])
    lever.switch({KNOB: "no"}, training)
    assert "was not set" in lever.prove().not_consumed[KNOB]
    lever.switch({KNOB: True}, training)
    assert "equals the baseline's" in lever.prove().consumed[KNOB]
    lever.switch({KNOB: False}, training)
    assert seen.keeps
    assert lever.prove().not_consumed[KNOB].startswith("0 checkpointed calls kept")
    lever.switch({}, training)
    assert not seen.keeps
    assert not lever.prove().consumed
