"""`advisor slurm tune` with a real Slurm: a controller and three nodes, each with a name and an address of its own."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from advisor.local.namespaces import own_namespaces, remove_leftovers, run_tool

from ...testbed.network import requires_testbed
from .conftest import MARK, ROOT, count_results, nothing_is_left, processes_of, wait_for

NEEDED = ("slurmctld", "slurmd", "munged", "sbatch", "nsenter")
MISSING = [name for name in NEEDED if shutil.which(name) is None]
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.testbed,
    pytest.mark.alone,  # beside another file Slurm did not start a job within four minutes
    pytest.mark.timeout(900),
    requires_testbed,
    pytest.mark.skipif(
        bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (Debian: slurm-wlm munge)"
    ),
]
CONTROLLER = "10.76.0.254"
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}({controller})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/state/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=30
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,bf_interval=2
NodeName=node[1-3] NodeAddr=10.76.0.[1-3] CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=node[1-3] Default=YES MaxTime=2:00:00 State=UP
"""


class Slurm:
    """A cluster that runs."""

    def __init__(self, switch: str, configuration: Path, work: Path) -> None:
        self._inside = ("nsenter", f"--net=/run/netns/{switch}")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ADVISOR_")}
        ours = {"SLURM_CONF": str(configuration), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
        self.environment, self.work = kept | ours, work

    def run(self, *words: str, **further: str) -> subprocess.CompletedProcess[str]:
        """Run a command where users are; srun and the like wait for ever for a node that is down."""
        return subprocess.run(
            [*self._inside, *words],
            env=self.environment | further,
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def state(self, job: str) -> str:
        told = self.run("scontrol", "show", "job", job).stdout
        found = re.search(r"JobState=(\w+)", told)
        return found[1] if found else told

    def told(self, job: str) -> str:
        path = self.work / f"advisor-train-{job}.out"
        return path.read_text() if path.exists() else ""

    def says(self, job: str, words: str) -> None:
        wait_for(lambda: re.search(words, self.told(job)), f"{words}: {self.told(job)}")

    def tune(self, *options: str) -> list[str]:
        """Submit a tuning; return the numbers of its allocations."""
        verb = (sys.executable, "-m", "advisor", "slurm", "tune", "--nodes", "2", *options)
        done = self.run(
            *verb, "--", "torchrun", "--nproc-per-node", "1", "train.py", **{MARK: str(self.work)}
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Three nodes; all that is theirs lies in one folder, and every daemon is known by its pid file."""
    remove_leftovers()
    home, host = tmp_path_factory.mktemp("slurm"), socket.gethostname().split(".")[0]
    for number in (1, 2, 3):
        (home / "state" / f"node{number}").mkdir(parents=True)
    configuration, hosts, key = home / "slurm.conf", home / "hosts", home / "munge.key"
    configuration.write_text(CONFIGURATION.format(host=host, controller=CONTROLLER, folder=home))
    names = [f"10.76.0.{number} node{number}\n" for number in (1, 2, 3)]
    hosts.write_text("".join(["127.0.0.1 localhost\n", f"{CONTROLLER} {host}\n", *names]))
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    with own_namespaces(("controller", "slurm-1", "slurm-2", "slurm-3")) as (switch, *nodes):
        run_tool("ip", "-n", switch, "link", "add", "switch", "type", "bridge")
        run_tool("ip", "-n", switch, "addr", "add", f"{CONTROLLER}/24", "dev", "switch")
        for device in ("switch", "lo"):
            run_tool("ip", "-n", switch, "link", "set", device, "up")
        for number, node in enumerate(nodes, 1):
            port = f"node-{number}"
            peer = ("peer", "name", "eth0", "netns", node)
            run_tool("ip", "-n", switch, "link", "add", port, "type", "veth", *peer)
            run_tool("ip", "-n", switch, "link", "set", port, "master", "switch", "up")
            run_tool("ip", "-n", node, "addr", "add", f"10.76.0.{number}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                run_tool("ip", "-n", node, "link", "set", device, "up")
        cluster = Slurm(switch, configuration, home)
        files = {"key-file": key, "socket": home / "munge.socket", "pid-file": home / "munged.pid",
                 "log-file": home / "munged.log", "seed-file": home / "munge.seed"}  # fmt: skip
        try:
            cluster.run(
                "munged", "--force", "--num-threads=2", *(f"--{name}={path}" for name, path in files.items())
            )
            cluster.run("slurmctld")
            for number, node in enumerate(nodes, 1):
                start = f"hostname node{number}; mount --bind {hosts} /etc/hosts; exec slurmd -N node{number}"
                inside = (
                    "nsenter",
                    f"--net=/run/netns/{node}",
                    "unshare",
                    "--uts",
                    "--mount",
                    "--propagation",
                    "slave",
                )
                subprocess.run(
                    [*inside, "bash", "-c", start], env=cluster.environment, check=True, timeout=60
                )
            yield cluster
        finally:
            for path in [*home.glob("node*.pid"), home / "slurmctld.pid", home / "munged.pid"]:
                with suppress(OSError, ValueError):
                    os.kill(int(path.read_text()), signal.SIGTERM)


@pytest.fixture
def slurm(cluster: Slurm, folder: Path) -> Iterator[Slurm]:
    """The same cluster with a folder of the test's own to work in, and nothing to do."""
    cluster.work = folder
    wait_for(lambda: cluster.run("sinfo", "-h", "-o", "%T %D").stdout == "idle 3\n", "three nodes are idle")
    yield cluster
    cluster.run("scancel", "--user=root")
    cluster.run("scontrol", "update", "NodeName=node2", "State=RESUME")
    for process in processes_of(folder):
        with suppress(Exception):
            process.kill()


def test_chain_goes_on_in_the_next_allocation_and_that_one_with_another_node_in_place_of_one_that_is_drained(
    slurm: Slurm, folder: Path
) -> None:
    first, second = slurm.tune("--time", "60", "--chain", "2", "--trials", "40", "--block-seconds", "0.3")
    slurm.says(first, r"Node 1 \(node2-1\) is there: 2 of 2")
    wait_for(lambda: count_results(folder), slurm.told(first))
    slurm.run("scancel", "--signal=USR1", first)  # as --signal does before the end
    wait_for(lambda: slurm.state(first) not in {"RUNNING", "COMPLETING"}, slurm.told(first))
    assert "nothing is lost" in slurm.told(first)
    kept = count_results(folder)
    slurm.says(second, "Resuming job")
    wait_for(lambda: len(count_results(folder)) > len(kept), slurm.told(second))
    kept |= count_results(folder)

    slurm.run("scontrol", "update", "NodeName=node2", "State=DRAIN", "Reason=test")
    slurm.run("scontrol", "requeue", second)
    wait_for(lambda: slurm.state(second) == "PENDING", slurm.told(second))
    slurm.run("scontrol", "update", f"JobId={second}", "StartTime=now")  # it would wait two minutes
    slurm.says(second, r"(?s)Node 1 \(node3-1\) is there: 2 of 2.*Resuming job")
    assert kept.items() <= count_results(folder).items()
    slurm.run("scancel", second)
    nothing_is_left(folder)


def test_walltime_that_fits_nothing_is_refused_before_and_in_the_allocation(
    slurm: Slurm, folder: Path
) -> None:
    verb = (sys.executable, "-m", "advisor", "slurm", "tune", "--nodes", "2", "--write", "x.sbatch")
    short = slurm.run(*verb, "--time", "4", "--", "torchrun", "--nproc-per-node", "1", "train.py")
    assert short.returncode == 2
    assert "an allocation of 4 min fits nothing" in short.stderr
    absent = slurm.run(*verb, "--time", "9", "--", "torchrun", "--nproc-per-node", "1", "absent.py")
    assert absent.returncode == 3
    assert "There is no script absent.py" in absent.stderr
    assert not (folder / "x.sbatch").exists()
    assert (
        slurm.run(*verb, "--time", "9", "--", "torchrun", "--nproc-per-node", "1", "train.py").returncode == 0
    )
    job = slurm.run("sbatch", "--parsable", "--time=2", "x.sbatch").stdout.strip()
    wait_for(lambda: slurm.state(job) == "FAILED", slurm.told(job))
    assert "This allocation ends in" in slurm.told(job)
    assert "nothing was started" in slurm.told(job)
