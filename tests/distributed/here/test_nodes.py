"""`advisor tune --here` on nodes with addresses of their own: to the answer, through kills, and in pieces."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from advisor.local.testbed import TestbedNode

from ...testbed.network import requires_testbed
from .conftest import (
    SHORT,
    WAITS,
    Start,
    Started,
    by_hand,
    count_results,
    end_all,
    find_process,
    nothing_is_left,
    processes_of,
    ranks_of,
    wait_for,
)

pytestmark = [pytest.mark.distributed, pytest.mark.testbed, pytest.mark.timeout(900), requires_testbed]

Nodes = tuple[TestbedNode, ...]


def test_two_nodes_come_to_one_answer_and_the_same_command_shows_it_again(
    start: Start, nodes: Nodes, folder: Path
) -> None:
    first, second = (start(number, *by_hand(number, nodes), *SHORT) for number in (0, 1))
    assert (first.ends(), second.ends()) == (0, 0), first.told
    assert "RESULT" in first.told
    assert "Node 1 of 2" in second.told
    assert "Node 0 has ended with exit code 0" in second.told
    nothing_is_left(folder)
    assert {path.name.rpartition("-")[2] for path in (folder / "advisor-train-state/agents").iterdir()} == {
        "0",
        "1",
    }

    again, beside = (start(number, *by_hand(number, nodes), *SHORT) for number in (0, 1))
    assert (again.ends(), beside.ends()) == (0, 0), again.told
    assert "has its answer" in again.told
    assert "RESULT" in again.told
    nothing_is_left(folder)


def test_pods_that_are_suspended_and_made_again_lose_no_race_and_need_no_common_folder(
    start: Start, nodes: Nodes, folder: Path
) -> None:
    # As docs/cluster/kubernetes/job.yaml says it; each node has a disk of its own, of which only node 0's is kept.
    secret = os.urandom(16).hex()
    said = {"ADVISOR_NODES": "2", "ADVISOR_HEAD": nodes[0].address, "ADVISOR_JOIN_SECRET": secret}
    kept: dict[str, str] = {}
    for by in (signal.SIGUSR1, signal.SIGTERM):
        options = ("--minutes", "20", "--trials", "3", "--block-seconds", "0.2")
        pods = [
            start(
                number,
                "--state",
                str(folder / f"kept-{number}"),
                *options,
                **said,
                JOB_COMPLETION_INDEX=str(number),
            )
            for number in (0, 1)
        ]
        wait_for(lambda kept=kept: len(count_results(folder, "kept-0")) > len(kept), pods[0].told)
        assert secret not in "".join(" ".join(each.cmdline()) for each in processes_of(folder))
        assert not list((folder / "kept-1").glob("*token*"))
        end_all(*pods, by=by)
        assert [each.ends() for each in pods] == [130, 130], pods[0].told
        assert "nothing is lost" in pods[0].told
        assert ("Resuming job" in pods[0].told) == bool(kept)
        nothing_is_left(folder)
        shutil.rmtree(folder / "kept-1")
        results = count_results(folder, "kept-0")
        assert kept.items() <= results.items()
        assert secret not in pods[0].told + pods[1].told
        kept = results


def test_killed_parts_are_told_and_leave_nothing(start: Start, nodes: Nodes, folder: Path) -> None:
    (folder / "train.py").write_text(WAITS)

    def begin(number: int) -> Started:
        return start(number, *by_hand(number, nodes), "--patience", "5s")

    def kill(*words: str) -> None:
        wait_for(lambda: len(ranks_of(folder)) == 2, first.told)
        find_process(folder, *words).send_signal(signal.SIGKILL)

    first, second = begin(0), begin(1)
    kill("agent run", "/agents/", "-1 --advertise")
    first.says(r"Node 1 .* has left: its agent stopped with exit code -9")
    first.says("the job waits for it")
    second.ends()
    second = begin(1)
    first.says("Node 1 .* is back: 2 of 2")
    kill("tune", "--node-rank 1")
    first.says(r"Node 1 .* has left: the connection broke")
    second = begin(1)
    kill("tune", "--node-rank 0")
    assert second.ends() == 5
    assert "Node 0 was not found" in second.told
    wait_for(lambda: not processes_of(folder), "nothing is left")

    first, second = begin(0), begin(1)
    kill("advisor serve")
    assert (first.ends(), second.ends()) == (1, 1), first.told
    assert "local server stopped with exit code -9" in first.told
    nothing_is_left(folder)


def test_job_goes_on_with_fewer_nodes_where_that_is_chosen_and_without_what_engines_add(
    start: Start, nodes: Nodes, folder: Path
) -> None:
    (folder / "train.py").write_text(WAITS)
    pod = {
        "PET_NNODES": "3",
        "PET_MASTER_ADDR": nodes[0].address,
        "PET_NPROC_PER_NODE": "1",
        "PET_RDZV_ID": "theirs",
    }
    engine = pod | {"RAY_JOB_ID": "01", "OMP_NUM_THREADS": "7"}
    fewer = ("--when-missing", "fewer", "--patience", "5s")
    first, second = (
        start(number, *fewer, command=("torchrun", "train.py"), **engine, PET_NODE_RANK=str(number))
        for number in (0, 1)
    )
    first.says("Node 2 has been away .* goes on with 2 nodes")
    first.says("Tuning train · 2 nodes")
    wait_for(lambda: len(ranks_of(folder)) == 2, first.told)
    assert "OMP_NUM_THREADS=7" in first.told
    for rank in ranks_of(folder):
        assert not {"PET_RDZV_ID", "RAY_JOB_ID", "ADVISOR_JOIN_SECRET"} & rank.keys()
        assert rank.get("OMP_NUM_THREADS") != "7"
        assert rank["WORLD_SIZE"] == "2"
    end_all(first, second)
    assert (first.ends(), second.ends()) == (130, 130)
    nothing_is_left(folder)
