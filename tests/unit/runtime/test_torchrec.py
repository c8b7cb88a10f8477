"""TorchRec's tables are known by the class of what holds them; what would leave them half trained is refused."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from fleet_advisor_runtime.levers.lever import Training  # noqa: E402
from fleet_advisor_runtime.levers.micro_batches.micro_batches import KNOB, MicroBatches  # noqa: E402
from fleet_advisor_runtime.levers.reduction.gradient_merge import explain_no_gate  # noqa: E402
from fleet_advisor_runtime.observe.torchrec import has_tables  # noqa: E402
from fleet_advisor_runtime.races.snapshot import explain_no_snapshot  # noqa: E402


class Tables(torch.nn.Module):
    """Stands in for a ShardedEmbeddingBagCollection: it lists itself and no parameter."""


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Training:
    module = SimpleNamespace(FusedOptimizerModule=Tables)
    monkeypatch.setitem(sys.modules, "torchrec.optim.fused", module)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), Tables())
    return Training([SimpleNamespace(module=model, parameters=model.parameters)], [])


def test_tables_are_found_in_the_model_that_holds_them(training: Training) -> None:
    assert has_tables(training.list_modules())
    assert not has_tables([torch.nn.Linear(2, 2)])


def test_nothing_is_held_back_split_or_put_back_beside_tables_that_learn_in_the_backward(
    training: Training,
) -> None:
    assert explain_no_gate(training).endswith("inside backward: no update can be held back.")
    refused = MicroBatches(SimpleNamespace(parts=1)).list_refusals(training)
    assert "each part of a batch would be a step of its own" in refused[KNOB]
    assert "could not be put back" in str(explain_no_snapshot(training, 2, 2**40))
