"""`mpirun -np 2 advisor tune --here -- python train.py` with a real Open MPI, over two network namespaces."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from advisor.local.testbed import TestbedNode

from ...testbed.network import requires_testbed
from .conftest import WAITS, Started, end_all, processes_of, ranks_of, wait_for

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.testbed,
    pytest.mark.timeout(600),
    requires_testbed,
    pytest.mark.skipif(
        shutil.which("mpirun") is None, reason="mpirun is not installed (Debian: openmpi-bin)"
    ),
]


def test_ranks_are_as_many_as_tasks_and_know_nothing_of_mpi(
    nodes: tuple[TestbedNode, ...], folder: Path
) -> None:
    (folder / "train.py").write_text(WAITS)
    shell = folder / "shell"  # what mpirun takes for ssh: it enters the namespace that has the address
    cases = "".join(
        f'{node.address}) shift; exec ip netns exec {node.namespace} sh -c "$*";;\n' for node in nodes
    )
    shell.write_text(f"#!/bin/sh\ncase $1 in\n{cases}esac\n")
    shell.chmod(0o755)
    words = (
        "--allow-run-as-root",
        "--mca",
        "plm_rsh_agent",
        str(shell),
        "--mca",
        "oob_tcp_if_include",
        "eth0",
    )
    hosts = ",".join(f"{node.address}:2" for node in nodes[:2])
    passed = [word for name in ("PATH", "PYTHONPATH", "NODES_OF_TEST", "NO_COLOR") for word in ("-x", name)]
    verb = (sys.executable, "-m", "advisor", "tune", "--here", "--", sys.executable, "train.py")
    started = Started(
        (*nodes[0].prefix, "mpirun", *words, *passed, "--host", hosts, "-np", "4", *verb),
        folder,
        {"TMPDIR": "/tmp", "HOME": os.environ.get("HOME", "/root")},
        folder / "log",
    )
    try:
        wait_for(lambda: len(ranks_of(folder)) == 4, started.told)
        assert "OMPI_" in started.told
        for rank in ranks_of(folder):
            assert not [name for name in rank if name.startswith(("OMPI_", "PMIX_"))]
            assert rank["WORLD_SIZE"] == "4"
        assert "leaves: the node's first task" in started.told
    finally:
        end_all(started)
        started.ends()
    # mpirun gives them a second to end, and kills them.
    wait_for(lambda: not processes_of(folder), "nothing is left")
