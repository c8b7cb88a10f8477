"""`advisor tune --here` on nodes with addresses of their own: to the answer, through kills, and in pieces."""

import os
import signal
from pathlib import Path

import pytest

from advisor.local.testbed import TestbedNode

from ...testbed.network import requires_testbed
from .conftest import (
    SHORT,
    WAITS,
    Start,
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


def test_three_stops_in_the_middle_lose_no_race(start: Start, nodes: Nodes, folder: Path) -> None:
    kept: dict[str, str] = {}
    long = ("--minutes", "20", "--trials", "40", "--block-seconds", "0.3")
    for by in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
        started = [start(number, *by_hand(number, nodes), *long) for number in (0, 1)]
        started[0].says("baseline   starting|search|Resuming")
        wait_for(lambda kept=kept: len(count_results(folder)) > len(kept), started[0].told)
        end_all(*started, by=by)
        assert [each.ends() for each in started] == [130, 130], started[0].told
        assert "nothing is lost" in started[0].told
        nothing_is_left(folder)
        results = count_results(folder)
        assert kept.items() <= results.items()
        kept = results


@pytest.mark.parametrize("part", ["verb of node 1", "agent of node 1", "server", "verb of node 0"])
def test_kill_of_each_part_is_told_and_leaves_nothing(
    part: str, start: Start, nodes: Nodes, folder: Path
) -> None:
    (folder / "train.py").write_text(WAITS)
    first, second = (start(number, *by_hand(number, nodes), "--patience", "5s") for number in (0, 1))
    wait_for(lambda: len(ranks_of(folder)) == 2, first.told)
    words = {
        "verb of node 1": ("tune", "--node-rank 1"),
        "agent of node 1": ("agent run", "/agents/", "-1 --advertise"),
        "server": ("advisor serve",),
        "verb of node 0": ("tune", "--node-rank 0"),
    }[part]
    find_process(folder, *words).send_signal(signal.SIGKILL)
    if part.endswith("node 1"):
        first.says(r"Node 1 .* has left: (the connection broke|its agent stopped with exit code -9)")
        first.says("the job waits for it")
        back = start(1, *by_hand(1, nodes), "--patience", "5s")
        first.says("Node 1 .* is back: 2 of 2")
        end_all(first, back)
        assert (first.ends(), back.ends()) == (130, 130)
    elif part == "server":
        assert (first.ends(), second.ends()) == (1, 1), first.told
        assert "local server stopped with exit code -9" in first.told
    else:
        assert second.ends() == 5
        assert "Node 0 was not found" in second.told
    wait_for(lambda: not processes_of(folder), "nothing is left")


def test_job_goes_on_with_fewer_nodes_where_that_is_chosen(start: Start, nodes: Nodes, folder: Path) -> None:
    (folder / "train.py").write_text(WAITS)
    fewer = ("--when-missing", "fewer", "--patience", "5s")
    first, second = (start(number, *by_hand(number, nodes, 3), *fewer) for number in (0, 1))
    first.says("Node 2 has been away .* goes on with 2 nodes")
    first.says("Tuning train · 2 nodes")
    end_all(first, second)
    assert (first.ends(), second.ends()) == (130, 130)
    nothing_is_left(folder)


def test_nodes_without_a_common_folder_have_a_secret_in_common(
    start: Start, nodes: Nodes, folder: Path
) -> None:
    (folder / "train.py").write_text(WAITS)
    secret = {"ADVISOR_JOIN_SECRET": os.urandom(16).hex()}
    states = [("--state", str(folder / f"state-{number}")) for number in (0, 1)]
    first, second = (start(number, *by_hand(number, nodes), *states[number], **secret) for number in (0, 1))
    first.says("2 of 2")
    second.says("has found node 0")
    told = first.told + second.told + "".join(" ".join(each.cmdline()) for each in processes_of(folder))
    assert secret["ADVISOR_JOIN_SECRET"] not in told
    end_all(first, second)
    assert (first.ends(), second.ends()) == (130, 130)
    nothing_is_left(folder)
    assert not list((folder / "state-1").glob("*token*"))


def test_time_that_fits_nothing_is_refused_by_its_figure_and_time_that_ends_is_used(
    start: Start, nodes: Nodes, folder: Path
) -> None:
    refused = start(0, *by_hand(0, nodes), "--ends-in", "100s")
    assert refused.ends() == 101
    assert "This allocation ends in 1.7 min" in refused.told
    assert "nothing was started" in refused.told
    (folder / "train.py").write_text(WAITS)
    first, second = (start(number, *by_hand(number, nodes), "--ends-in", "155s") for number in (0, 1))
    assert (first.ends(), second.ends()) == (130, 130)
    assert "This allocation ends in 60 s: stopping while there is time" in first.told
    nothing_is_left(folder)


def test_engines_own_variables_do_not_reach_the_ranks(start: Start, nodes: Nodes, folder: Path) -> None:
    (folder / "train.py").write_text(WAITS)
    pod = {
        "PET_NNODES": "2",
        "PET_MASTER_ADDR": nodes[0].address,
        "PET_NPROC_PER_NODE": "1",
        "PET_RDZV_ID": "theirs",
    }
    engine = pod | {"RAY_JOB_ID": "01", "OMP_NUM_THREADS": "7"}
    plain = ("torchrun", "train.py")
    started = [start(number, command=plain, **engine, PET_NODE_RANK=str(number)) for number in (0, 1)]
    wait_for(lambda: len(ranks_of(folder)) == 2, started[0].told)
    assert "OMP_NUM_THREADS=7" in started[0].told
    for rank in ranks_of(folder):
        assert not {"PET_RDZV_ID", "RAY_JOB_ID", "ADVISOR_JOIN_SECRET"} & rank.keys()
        assert rank.get("OMP_NUM_THREADS") != "7"
        assert rank["WORLD_SIZE"] == "2"
    end_all(*started)
    assert [each.ends() for each in started] == [130, 130]
