"""What is digested of a training whose bits are compared."""

from __future__ import annotations

import importlib

import torch
from torch import nn


def test_a_momentum_of_sparse_gradients_is_digested_as_what_it_holds() -> None:
    check = importlib.import_module("fleet_advisor_runtime.races.bit_check")
    training = importlib.import_module("fleet_advisor_runtime.levers.lever").Training
    digests = []
    for rows in ([1, 4], [1, 4], [2, 4]):
        torch.manual_seed(0)
        table = nn.Embedding(6, 2, sparse=True)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1, momentum=0.9)
        table(torch.tensor(rows)).sum().backward()
        optimizer.step()
        [state] = optimizer.state.values()
        assert state["momentum_buffer"].is_sparse
        digests.append(check.digest_training(training([], [optimizer])))
    assert digests[0] == digests[1]
    assert [key for key in digests[0] if digests[0][key] != digests[2][key]] == list(digests[0])
