"""What stands for the parts of a job's specification that nobody gave."""

import pytest
from pydantic import ValidationError

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


@pytest.mark.parametrize("kind", WorkloadKind)
def test_variables_in_front_of_the_command_are_the_workloads(kind: WorkloadKind) -> None:
    typed = ["FORCE_TORCHRUN=1", "A=", "B=x=y", "llamafactory-cli", "train", "lr=3"]
    workload = Workload(kind=kind, command=typed, environment={"A": "given", "C": "c"})

    assert workload.command == ("llamafactory-cli", "train", "lr=3")
    assert workload.environment == {"FORCE_TORCHRUN": "1", "A": "", "B": "x=y", "C": "c"}
    assert "x=y" not in workload.model_dump_json()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["OMP_NUM_THREADS=1"], "the command is only variables"),
        (["LR=${lr:-0.1}", "python", "train.py"], r"LR=\$\{…\} in front of the command is not filled in"),
    ],
)
def test_variables_alone_and_unfilled_ones_are_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        Workload(command=words)
