"""What stands for the parts of a job's specification that nobody gave."""

import pytest

from advisor.protocol.asked.jobs import Budget
from advisor.protocol.training.workload import Workload, WorkloadKind
from tests.unit.tuning.simulated_cluster import make_spec


@pytest.mark.parametrize(
    ("minutes", "given", "patience_s"),
    [(1, None, 20), (3, None, 30), (6, None, 60), (30, None, 120), (3, 300.0, 300), (30, 5.0, 5)],
)
def test_one_hang_does_not_take_all_of_a_short_job(
    minutes: float, given: float | None, patience_s: float
) -> None:
    spec = make_spec(budget=Budget(max_seconds=60.0 * minutes), hang_timeout_s=given)

    assert spec.patience_s == patience_s


def test_a_command_may_load_for_two_minutes_before_its_first_line() -> None:
    workload = Workload(kind=WorkloadKind.COMMAND, command=("./train", "${num_threads}"))

    assert make_spec(budget=Budget(max_seconds=180.0), workload=workload).patience_s == 120
