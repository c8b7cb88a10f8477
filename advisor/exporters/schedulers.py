"""`run.sh` under a scheduler: `job.yaml` for Kubernetes, without an operator, and `train.sbatch` for Slurm."""

import textwrap

from advisor.exporters.format import PYTORCH, SHELL, Format, Written, comment
from advisor.exporters.launch import ARCHIVE, LEVERS, write_torchrun
from advisor.exporters.plain import write_json
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job
from advisor.protocol.nodes.cluster import DeviceKind

IMAGE = "REPLACE-WITH-YOUR-TRAINING-IMAGE"
_FILES = "/etc/fleet-advisor"
_MANIFEST = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: {name}-strategy
data:
  run.sh: |
{run_sh}
  strategy.json: |
{strategy}
---
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    batch.kubernetes.io/job-name: {name}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
  completionMode: Indexed
  completions: {nodes}
  parallelism: {nodes}
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      subdomain: {name}
      containers:
        - name: training
          image: {image}
          command: ["bash", "-c", "NODE_RANK=\\"$JOB_COMPLETION_INDEX\\" exec bash {files}/run.sh"]
          env:
            - name: MASTER_ADDR
              value: {name}-0.{name}
{resources}          volumeMounts:
            - name: strategy
              mountPath: {files}
            - name: shared-memory
              mountPath: /dev/shm
      volumes:
        - name: strategy
          projected:
            sources:
              - configMap:
                  name: {name}-strategy
              - configMap:
                  name: {name}-runtime
        - name: shared-memory
          emptyDir:
            medium: Memory
"""
_MEET = """\
# sbatch runs a copy of this file: the strategy's files are found where you submitted it.
here="${ADVISOR_FILES:-$SLURM_SUBMIT_DIR}"
[ -f "$here/run.sh" ] || { echo "No run.sh in $here: submit there, or set ADVISOR_FILES to its folder." >&2; exit 1; }
read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_PORT="$((29500 + SLURM_JOB_ID % 1000))"
export MASTER_ADDR MASTER_PORT
"""


def _plain_name(job: Job) -> str:
    """Return lower-case letters, digits and single hyphens, starting with a letter; at most 40 of them."""
    kept = "".join(mark if mark.isascii() and mark.isalnum() else "-" for mark in job.spec.name.lower())
    name = "-".join(filter(None, kept.split("-")))[:40].strip("-")
    return name if name[:1].isalpha() else f"training-{name}".rstrip("-")


def _count_gpus(job: Job) -> int | None:
    """GPUs of a node; None where the job ran on processors, or did not tell."""
    facts = job.facts
    return facts.local_world_size if facts is not None and facts.device is DeviceKind.CUDA else None


def _write_kubernetes(advice: Advice, job: Job) -> Written:
    """The manifest: strategy and runtime travel in ConfigMaps, and the image is the user's as it is."""
    made, resources = write_torchrun(advice, job), ""
    if gpus := _count_gpus(job):
        limits = {"resources:": 10, "limits:": 12, f"nvidia.com/gpu: {gpus}": 14}
        resources = "".join(" " * indent + f"{line}\n" for line, indent in limits.items())
    made.warnings.append(f"Replace {IMAGE} by an image with your script and its data in it.")
    name = _plain_name(job)
    title = (
        f"Trains under the strategy on Kubernetes: kubectl create configmap {name}-runtime --from-file={ARCHIVE}, "
        "and then kubectl apply -f job.yaml"
    )
    manifest = _MANIFEST.format(
        name=name, nodes=job.spec.nodes, image=IMAGE, files=_FILES, resources=resources,
        run_sh=textwrap.indent(made.content.rstrip("\n"), "    "),
        strategy=textwrap.indent(write_json(advice, job).content.rstrip("\n"), "    "),
    )  # fmt: skip
    made.content = comment(made.head(advice, job, title)) + manifest
    return made


def _write_slurm(advice: Advice, job: Job) -> Written:
    """The batch script; nodes and devices are those of the job that was measured."""
    made = write_torchrun(advice, job)
    options = [f"--job-name={_plain_name(job)}", f"--nodes={job.spec.nodes}", "--ntasks-per-node=1"]
    if gpus := _count_gpus(job):
        options.append(f"--gpus-per-node={gpus}")
    made.warnings.append(
        "Account, partition and time are your site's: sbatch --account=... --time=... train.sbatch"
    )
    title = (
        "Trains under the strategy on Slurm: sbatch train.sbatch, with run.sh and what it needs beside it."
    )
    directives = "".join(f"#SBATCH {option}\n" for option in options)
    head = "#!/usr/bin/env bash\n" + directives + comment(made.head(advice, job, title))
    start = """srun bash -c 'NODE_RANK="$SLURM_NODEID" exec bash "$0" "$@"' "$here/run.sh" "$@"\n"""
    made.content = f"{head}set -euo pipefail\n{_MEET}{start}"
    return made


SLURM = Format(
    name="slurm", filename="train.sbatch", media_type=SHELL, knobs=LEVERS, kinds=PYTORCH, write=_write_slurm,
    needs=("torchrun", "json", "runtime"),
    meaning="run.sh on every node of a Slurm allocation: sbatch train.sbatch.",
)  # fmt: skip
KUBERNETES = Format(
    name="kubernetes", filename="job.yaml", media_type="application/yaml", knobs=LEVERS, kinds=PYTORCH,
    needs=("runtime",), write=_write_kubernetes,
    meaning="run.sh in one pod a node of a Kubernetes cluster: an indexed Job with the strategy in it.",
)  # fmt: skip
