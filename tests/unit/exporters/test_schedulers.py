"""What is exported for schedulers and for NCCL: each node starts run.sh as what it is, where the others find it."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from advisor.exporters import export, list_at_work
from advisor.exporters.format import describe_difference
from advisor.protocol.answers.advice import Verdict

CHANGES = {"fuse_grad_size_in_MB": 50.0, "NCCL_SOCKET_NTHREADS": 4}
SRUN = """#!/usr/bin/env bash
for node in 0 1; do SLURM_NODEID="$node" "$@"; done
"""
SCONTROL = """#!/usr/bin/env bash
[ "$*" = "show hostnames n[3-4]" ] && printf 'n3\\nn4\\n'
"""
TORCHRUN = """#!/usr/bin/env bash
[ "$(basename "$1") $2" = "fleet_advisor_runtime.pyz --strategy" ] && shift 4
echo "$* with $(basename "$ADVISOR_FILES")"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Give a folder with what a node of a Slurm cluster has, and a Python that tells how it was called."""
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "python3": TORCHRUN}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def test_sbatch_starts_run_sh_on_every_node(advise, cluster: Path) -> None:
    advice, job = advise(CHANGES, nodes=2, world_size=4, name="My job: no. 7", backend="nccl")
    for info in list_at_work(job):
        name, content = info.filename, export(advice, job, info.name).data
        (cluster / name).write_bytes(content)
    text = (cluster / "train.sbatch").read_text()
    directives = [line.split(maxsplit=1)[1] for line in text.splitlines() if line.startswith("#SBATCH")]
    assert directives == ["--job-name=my-job-no-7", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=2"]
    assert text.index("#SBATCH --gpus") < text.index("set -euo"), "Slurm stops reading at the first command"
    environment = {
        "PATH": f"{cluster}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_NODELIST": "n[3-4]", "SLURM_JOB_ID": "70012",
        "ADVISOR_FILES": str(cluster),
    }  # fmt: skip
    done = subprocess.run(
        ["bash", str(cluster / "train.sbatch"), "--more"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    for rank, line in enumerate(done.stdout.splitlines()):
        meeting = f"--nnodes 2 --node-rank {rank} --master-addr n3 --master-port 29512"
        assert line.startswith(f"torchrun --nproc-per-node 2 {meeting} train.py --epochs 3 --more")
    missing = subprocess.run(
        ["bash", str(cluster / "train.sbatch")], env={**environment, "ADVISOR_FILES": "/nowhere"}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert missing.returncode == 1
    assert "No run.sh in /nowhere" in missing.stderr


def test_kubernetes_gets_one_pod_a_node_with_the_strategy_in_it(advise) -> None:
    advice, job = advise(CHANGES, nodes=2, world_size=4, name="My job: no. 7", backend="nccl")
    strategy, service, manifest = yaml.safe_load_all(export(advice, job, "kubernetes").content)
    assert strategy["data"] == {
        "run.sh": export(advice, job, "torchrun").content.rstrip("\n") + "\n",
        "strategy.json": export(advice, job, "json").content,
    }
    spec = manifest["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    pod = spec["template"]["spec"]
    sources = [source["configMap"]["name"] for source in pod["volumes"][0]["projected"]["sources"]]
    assert sources == ["my-job-no-7-strategy", "my-job-no-7-runtime"]
    (container,) = pod["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    assert {"name": "MASTER_ADDR", "value": "my-job-no-7-0.my-job-no-7"} in container["env"]
    assert pod["subdomain"] == service["metadata"]["name"] == manifest["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": manifest["metadata"]["name"]}
    on_processors = yaml.safe_load_all(export(*advise(CHANGES), "kubernetes").content)
    assert "resources" not in list(on_processors)[2]["spec"]["template"]["spec"]["containers"][0]


def test_nccl_conf_holds_nccl_variables_only_and_says_who_beats_it(advise) -> None:
    advice, job = advise(
        {**CHANGES, "num_threads": 2}, environment={"NCCL_SOCKET_NTHREADS": "1"}, backend="nccl"
    )
    file = export(advice, job, "nccl")
    assert [line for line in file.content.splitlines() if not line.startswith("#")] == [
        "NCCL_SOCKET_NTHREADS=4"
    ]
    assert set(file.unmapped) == {"fuse_grad_size_in_MB", "num_threads"}
    assert "A variable that is exported already beats this file" in file.content
    assert "The job itself sets NCCL_SOCKET_NTHREADS" in file.content


def test_a_difference_shows_what_changes_and_what_cannot(advise) -> None:
    advice, job = advise(CHANGES)
    assert describe_difference(advice, export(advice, job, "env")).splitlines() == [
        "--- your script as it was measured",
        "+++ strategy.env",
        "!fuse_grad_size_in_MB = 50: No environment variable sets it: use the torchrun or paddle export.",
        "-NCCL_SOCKET_NTHREADS = 1",
        "+NCCL_SOCKET_NTHREADS = 4",
    ]
    kept, job = advise({})
    assert "nothing needs to change" in describe_difference(kept, export(kept, job, "json"))
    undecided = kept.model_copy(update={"verdict": Verdict.UNDECIDED, "what_to_do": "Give it more time."})
    told = describe_difference(undecided, export(undecided, job, "json"))
    assert told.endswith(
        " Verdict: undecided. This file is the baseline: it sets nothing that the script does not do. "
        "Give it more time."
    )
