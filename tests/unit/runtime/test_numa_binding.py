"""The lever of numa_binding, on a made-up machine of two NUMA nodes, and on the CPUs of this one."""

import os
import threading
from pathlib import Path

import pytest
import torch

from agent.runtime.levers.computation import numa_binding
from agent.runtime.levers.computation.numa_binding import (
    CannotBind,
    NumaBinding,
    choose_cpus,
    find_node_of_gpu,
    list_nodes,
)
from agent.runtime.levers.lever import Training

TRAINING = Training(replicas=[], optimizers=[])
ALL = frozenset(range(16))


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Two NUMA nodes of four cores each; a core's two CPUs are 8 apart. GPU 0 is at node 1."""
    for cpu in ALL:
        (tmp_path / f"devices/system/node/node{cpu % 8 // 4}/cpu{cpu}").mkdir(parents=True)
        core = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        core.mkdir(parents=True)
        (core / "thread_siblings_list").write_text(f"{cpu % 8},{cpu % 8 + 8}\n")
    for address, node in (("0000:dc:00.0", "1"), ("0000:3b:00.0", "-1")):
        (tmp_path / f"bus/pci/devices/{address}").mkdir(parents=True)
        (tmp_path / f"bus/pci/devices/{address}/numa_node").write_text(f"{node}\n")
    return tmp_path


def test_a_rank_gets_its_node_or_whole_cores_of_it_that_no_other_rank_uses(machine: Path) -> None:
    nodes = list_nodes(ALL, machine)
    assert nodes == {0: frozenset({0, 1, 2, 3, 8, 9, 10, 11}), 1: frozenset({4, 5, 6, 7, 12, 13, 14, 15})}
    homes = [0, 0, 0, 1]
    shares = [choose_cpus("exclusive", place, homes, nodes, machine) for place in range(4)]
    assert shares == [{0, 1, 8, 9}, {2, 10}, {3, 11}, nodes[1]]
    assert [choose_cpus("node", place, homes, nodes, machine) for place in (0, 3)] == [nodes[0], nodes[1]]
    assert find_node_of_gpu("0000:dc:00.0", machine) == 1
    assert find_node_of_gpu("0000:3b:00.0", machine) == 0, "-1 means that there is one"


def test_what_would_bind_nothing_is_refused_with_the_reason(machine: Path) -> None:
    one = list_nodes(frozenset({0, 1, 8, 9}), machine)
    with pytest.raises(CannotBind, match="one NUMA node"):
        choose_cpus("node", 0, [0, 0], one, machine)
    with pytest.raises(CannotBind, match="to itself"):
        choose_cpus("exclusive", 0, [0], one, machine)
    with pytest.raises(CannotBind, match="3 ranks share 2 cores"):
        choose_cpus("exclusive", 0, [0, 0, 0], one, machine)
    with pytest.raises(CannotBind, match="no CPU of NUMA node 1"):
        choose_cpus("node", 0, [1], one, machine)


def make_lever(monkeypatch: pytest.MonkeyPatch, machine: Path, ranks: int = 2, rank: int = 1) -> NumaBinding:
    monkeypatch.setattr(numa_binding, "_read_affinity", lambda _: ALL)
    lever = NumaBinding(torch.device("cpu"), rank, ranks, machine)
    monkeypatch.undo()
    return lever


def test_a_lever_refuses_where_no_mode_can_act_and_where_the_launch_has_bound_the_rank(
    monkeypatch: pytest.MonkeyPatch, machine: Path
) -> None:
    assert make_lever(monkeypatch, machine).list_refusals(TRAINING) == {}
    lever = make_lever(monkeypatch, machine / "nothing", ranks=1, rank=0)
    assert "to itself" in lever.list_refusals(TRAINING)["numa_binding"]
    lever._launcher = frozenset({0})
    assert "binds this rank" in lever.list_refusals(TRAINING)["numa_binding"]


def test_a_gpus_rank_is_bound_where_its_gpu_is(monkeypatch: pytest.MonkeyPatch, machine: Path) -> None:
    monkeypatch.setattr(numa_binding, "_read_affinity", lambda _: ALL)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    addresses = ["0000:dc:00.0", "0000:3b:00.0"]
    lever = NumaBinding(torch.device("cuda", 0), 0, 2, machine, lambda gpu: addresses[gpu])
    assert lever._choose("node") == {4, 5, 6, 7, 12, 13, 14, 15}
    assert lever._choose("exclusive") == {4, 5, 6, 7, 12, 13, 14, 15}, "the only rank there"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(CannotBind, match="sees its own GPU only"):
        lever._choose("exclusive")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU cannot be shared out")
def test_threads_move_and_come_back_but_those_that_were_bound_otherwise(tmp_path: Path) -> None:
    own = sorted(os.sched_getaffinity(0))
    seen: dict[str, set[int]] = {}
    asked, told = threading.Event(), threading.Event()

    def run(name: str, bound: set[int]) -> None:
        if bound:
            os.sched_setaffinity(0, bound)
        told.set()
        asked.wait(20)
        seen[name] = os.sched_getaffinity(0)

    threads = []
    for name, bound in (("free", set[int]()), ("bound", {own[-1]})):
        threads.append(threading.Thread(target=run, args=(name, bound)))
        told.clear()
        threads[-1].start()
        told.wait(20)
    lever = NumaBinding(torch.device("cpu"), 0, 2, tmp_path)
    try:
        lever.switch({"numa_binding": "exclusive"}, TRAINING)
        half = set(own[: (len(own) + 1) // 2])
        assert os.sched_getaffinity(0) == half
        assert "CPUs 0" in lever.prove().consumed["numa_binding"] or own[0] != 0
        asked.set()
        for thread in threads:
            thread.join(20)
        assert seen == {"free": half, "bound": {own[-1]}}
    finally:
        lever.switch({}, TRAINING)
    assert os.sched_getaffinity(0) == set(own)
    lever.switch({"numa_binding": "node"}, TRAINING)
    assert "one NUMA node" in lever.prove().not_consumed["numa_binding"]
    assert os.sched_getaffinity(0) == set(own)
