"""A torch that is newer than the levers: what one of them does not find there costs its own knobs only."""

from types import SimpleNamespace

import pytest
import torch
from fleet_advisor_runtime.levers.lever import Training
from fleet_advisor_runtime.levers.registry import Levers
from fleet_advisor_runtime.loading.reading import Reading


def test_a_lever_that_does_not_know_its_torch_is_refused_and_the_others_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    levers = Levers(0, 2, 2, torch.device("cpu"), SimpleNamespace(), {}, Reading())
    monkeypatch.setattr(levers, "_all", levers._all[:3])
    first, lost, last = levers._all
    for lever in (first, last):
        monkeypatch.setattr(lever, "list_refusals", lambda training: {})

    def fail(training: Training) -> dict[str, str]:
        return {"never": SimpleNamespace().mp_policy}

    monkeypatch.setattr(lost, "list_refusals", fail)
    for lever in levers._all:
        monkeypatch.setattr(lever, "serves_replicas", True)
    refused = levers.list_refusals(Training([torch.nn.Linear(1, 1)], []))
    told = f"It does not work with torch {torch.__version__}: AttributeError: "
    assert {knob for knob, why in refused.items() if why.startswith(told)} == set(lost.knobs)
