"""Two strategies held against each other: what has to be set beside the one to come to the other."""

import pytest

from advisor.cli.commands.measuring.verify import relate
from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes

OWN: dict[str, Value] = {"num_threads": 2, "fuse_grad_size_in_MB": 25.0, "nccl_comm_num": 1}


@pytest.mark.parametrize(
    ("wanted", "rival", "beside"),
    [
        ({"num_threads": 1}, {}, {"num_threads": 1}),
        ({"num_threads": 1}, {"num_threads": 1}, {}),
        ({"num_threads": 1}, {"fuse_grad_size_in_MB": 4.0}, {"num_threads": 1, "fuse_grad_size_in_MB": 25.0}),
        ({"num_threads": 1, "nccl_comm_num": 2}, {"num_threads": 1}, {"nccl_comm_num": 2}),
        ({"num_threads": 2}, {"num_threads": 1}, {"num_threads": 2}),
        ({}, {"num_threads": 2}, {}),
    ],
)
def test_what_leads_from_one_strategy_to_another(wanted, rival, beside) -> None:
    found = relate(Changes(wanted), Changes(rival), OWN)
    assert found == beside
    assert {**OWN, **rival, **found} == {**OWN, **wanted}
