"""`run.sh` under a scheduler: `job.yaml` for Kubernetes, without an operator, and `train.sbatch` for Slurm."""

import textwrap

from advisor.exporters.comments import comment, head_lines
from advisor.exporters.exported import Exported
from advisor.exporters.launch.run_script import RUNTIME, export_torchrun
from advisor.exporters.strategy_json import export_json
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job
from advisor.protocol.nodes.cluster import DeviceKind


def plain_name(job: Job) -> str:
    """Return lower-case letters, digits and single hyphens, starting with a letter; at most 40 of them."""
    kept = "".join(mark if mark.isascii() and mark.isalnum() else "-" for mark in job.spec.name.lower())
    name = "-".join(filter(None, kept.split("-")))[:40].strip("-")
    return name if name[:1].isalpha() else f"training-{name}".rstrip("-")


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


def export_kubernetes(advice: Advice, job: Job) -> Exported:
    """Return the manifest: strategy and runtime travel in ConfigMaps, and the image is the user's as it is."""
    script = export_torchrun(advice, job)
    facts = job.facts
    resources = ""
    if facts is not None and facts.device is DeviceKind.CUDA:
        limits = {"resources:": 10, "limits:": 12, f"nvidia.com/gpu: {facts.local_world_size}": 14}
        resources = "".join(" " * indent + f"{line}\n" for line, indent in limits.items())
    warnings = [
        *script.warnings,
        f"Replace {IMAGE} by an image with your script and its data in it.",
    ]
    name = plain_name(job)
    title = (
        f"Trains under the strategy on Kubernetes: kubectl create configmap {name}-runtime --from-file={RUNTIME}, "
        "and then kubectl apply -f job.yaml"
    )
    head = head_lines(advice, job, title, script.provenance, warnings, script.unmapped)
    manifest = _MANIFEST.format(
        name=name, nodes=job.spec.nodes, image=IMAGE, files=_FILES, resources=resources,
        run_sh=textwrap.indent(script.content.rstrip("\n"), "    "),
        strategy=textwrap.indent(export_json(advice, job).content.rstrip("\n"), "    "),
    )  # fmt: skip
    return Exported(
        format="kubernetes",
        filename="job.yaml",
        media_type="application/yaml",
        content=comment(head) + manifest,
        provenance=script.provenance,
        unmapped=script.unmapped,
        warnings=tuple(warnings),
        needs=("runtime",),
    )


_MEET = """\
# sbatch runs a copy of this file: the strategy's files are found where you submitted it.
here="${ADVISOR_FILES:-$SLURM_SUBMIT_DIR}"
[ -f "$here/run.sh" ] || { echo "No run.sh in $here: submit there, or set ADVISOR_FILES to its folder." >&2; exit 1; }
read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_PORT="$((29500 + SLURM_JOB_ID % 1000))"
export MASTER_ADDR MASTER_PORT
"""


def export_slurm(advice: Advice, job: Job) -> Exported:
    """Return the batch script; nodes and devices are those of the job that was measured."""
    script = export_torchrun(advice, job)
    facts = job.facts
    options = [f"--job-name={plain_name(job)}", f"--nodes={job.spec.nodes}", "--ntasks-per-node=1"]
    if facts is not None and facts.device is DeviceKind.CUDA:
        options.append(f"--gpus-per-node={facts.local_world_size}")
    warnings = [
        *script.warnings,
        "Account, partition and time are your site's: sbatch --account=... --time=... train.sbatch",
    ]
    title = (
        "Trains under the strategy on Slurm: sbatch train.sbatch, with run.sh and what it needs beside it."
    )
    head = head_lines(advice, job, title, script.provenance, warnings, script.unmapped)
    directives = "".join(f"#SBATCH {option}\n" for option in options)
    start = """srun bash -c 'NODE_RANK="$SLURM_NODEID" exec bash "$0" "$@"' "$here/run.sh" "$@"\n"""
    return Exported(
        format="slurm",
        filename="train.sbatch",
        media_type="text/x-shellscript; charset=utf-8",
        content="#!/usr/bin/env bash\n" + directives + comment(head) + "set -euo pipefail\n" + _MEET + start,
        provenance=script.provenance,
        unmapped=script.unmapped,
        warnings=tuple(warnings),
        needs=("torchrun", "json", "runtime"),
    )
