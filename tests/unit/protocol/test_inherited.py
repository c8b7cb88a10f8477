"""Variables that a training inherits: which are raced away, which are told only, and how a launch goes without one."""

from __future__ import annotations

import pytest

from advisor.cli.commands.operating.checks import Status, check_environment
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.training.inherited import list_inherited, race_away
from advisor.protocol.training.settling import list_unset, list_variables, settle
from advisor.protocol.training.workload import Workload
from agent.production.plan import Plan
from agent.runtime.inject.variables import RUN


@pytest.mark.parametrize(
    ("name", "value", "fate"),
    [
        ("CUDA_LAUNCH_BLOCKING", "1", "raced"),
        ("CUDA_LAUNCH_BLOCKING", "0", "nothing"),
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "raced"),
        ("TORCH_DISTRIBUTED_DEBUG", "OFF", "nothing"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "1", "raced"),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64", "raced"),
        ("OMP_PROC_BIND", "true", "raced"),
        ("KMP_BLOCKTIME", "0", "raced"),
        ("MKL_NUM_THREADS", "4", "raced"),
        ("MKL_CBWR", "AVX2", "told"),
        ("NCCL_ALGO", "Ring", "raced"),
        ("NCCL_LL_THRESHOLD", "0", "told"),
        ("NCCL_SHM_USE_CUDA_MEMCPY", "1", "told"),
        ("NCCL_DEBUG", "INFO", "raced"),
        ("NCCL_DEBUG", "WARN", "nothing"),
        ("NCCL_SOCKET_IFNAME", "eth0", "told"),
        ("NCCL_IB_DISABLE", "1", "told"),
        ("NCCL_P2P_DISABLE", "1", "told"),
        ("NCCL_NET_PLUGIN", "aws", "told"),
        ("NCCL_TUNER_PLUGIN", "aws", "told"),
        ("MASTER_ADDR", "a", "nothing"),
        ("PATH", "/bin", "nothing"),
    ],
)
def test_only_what_no_training_needs_to_start_is_raced_away(name: str, value: str, fate: str) -> None:
    found = list_inherited({name: value})
    assert len(found) == (fate != "nothing")
    assert len(race_away({name: value})) == (fate == "raced")
    assert all(each.sentence.endswith(".") for each in found)


def make_workload(**environment: str) -> Workload:
    knobs = race_away({"OMP_PROC_BIND": "true"})
    return Workload.model_validate(
        {"command": ("torchrun", "train.py"), "own": tuple(knobs), "environment": environment}
    )


def test_a_launch_inherits_the_variable_unless_the_strategy_takes_it_away() -> None:
    workload = make_workload()
    unset = {"inherited_OMP_PROC_BIND": "unset"}
    assert list_unset(workload.own, {}) == frozenset()
    assert list_unset(workload.own, unset) == {"OMP_PROC_BIND"}
    for changes in ({}, unset):
        assert "OMP_PROC_BIND" not in settle(workload, changes).environment
        assert "OMP_PROC_BIND" not in list_variables(workload.own, changes)
    told = list_variables(workload.own, unset)["ADVISOR_KNOB_inherited_OMP_PROC_BIND"]
    assert told == "unset"


def test_a_training_under_the_strategy_starts_without_it() -> None:
    workload = make_workload()
    variables = {"OMP_PROC_BIND": "true", "PATH": "/bin"}
    for value, stays in (("unset", False), ("inherited", True)):
        plan = Plan(Changes({"inherited_OMP_PROC_BIND": value}), "", own=workload.own)
        built = plan.build_environment(variables, None, None)
        assert ("OMP_PROC_BIND" in built) == stays
        assert RUN in built


def test_doctor_names_each_and_says_how_it_is_raced_away() -> None:
    check = check_environment({"CUDA_LAUNCH_BLOCKING": "1", "NCCL_IB_DISABLE": "1"})
    assert check.status is Status.WARN
    assert "CUDA_LAUNCH_BLOCKING: It is for debugging" in check.finding
    assert "NCCL_IB_DISABLE: The ranks may need it" in check.finding
    assert "advisor tune --inherited" in check.remedy
    assert check_environment({"NCCL_IB_DISABLE": "1"}).status is Status.OK
    gone = check_environment({"NCCL_TREE_THRESHOLD": "0"})
    assert "NCCL_TREE_THRESHOLD: NCCL 2.16 and later do not read it" in gone.finding
    assert check_environment({}).status is Status.OK
