"""Two strategies held against each other: what has to be set beside the one to come to the other."""

import pytest

from advisor.cli.commands.measuring.verify import judge, relate
from advisor.protocol.answers.advice import Interval
from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes

from .advices import a_change

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


@pytest.mark.parametrize(
    ("ratio", "low", "high", "passed"),
    [
        (1.1, 1.08, 1.12, True),
        (1.02, 1.0, 1.1, None),
        (0.9, 0.85, 1.0, False),
        (63.0, 0.09, 4e3, None),
        (15.0, 2.9, 79.0, True),
    ],
)
def test_ci_passes_on_no_figure_that_is_not_known(
    ratio: float, low: float, high: float, passed: bool | None
) -> None:
    gain = Interval(ratio=ratio, low=low, high=high, rounds=8, sessions=2)
    advice = a_change().model_copy(update={"gain": gain})
    assert judge(advice, None, advice.changes, fail_below=1.05).passed is passed
