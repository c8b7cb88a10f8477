"""The files of docs/cluster/, and what each engine makes of them on a node, as its own sources have it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "docs" / "cluster"
KUBERNETES = FOLDER / "kubernetes"
MANIFESTS = sorted(path.stem for path in KUBERNETES.glob("*.yaml") if path.stem not in {"Chart", "values"})
SECRET = "what the Secret holds, and nobody guesses"
Document = dict[str, Any]


def load(name: str) -> list[Document]:
    """The objects of a manifest."""
    return list(yaml.safe_load_all((KUBERNETES / f"{name}.yaml").read_text()))


def job_of(document: Document) -> Document | None:
    """The Job that is in an object: itself, or the one that its controller makes of it."""
    if document["kind"] == "Job":
        return document["spec"]
    jobs = document["spec"].get("template", document).get("spec", {}).get("replicatedJobs")
    return jobs[0]["template"]["spec"] if jobs else None


def list_nodes(documents: list[Document]) -> Iterator[tuple[str, dict[str, str], list[str]]]:
    """Each node of the job in these objects: its name in DNS, its environment and its command line."""
    owner = next(each for each in documents if each["kind"] in {"Job", "JobSet", "TrainJob"})
    name, spec = owner["metadata"]["name"], owner["spec"]
    job = next(filter(None, map(job_of, documents)))
    trainer = spec.get("trainer", {})
    count = trainer.get("numNodes") or job["completions"]
    container = {**job["template"]["spec"]["containers"][0], **trainer}
    labels = {"jobset.sigs.k8s.io/jobset-name": name}
    for index in range(count):
        values = {"JOB_COMPLETION_INDEX": str(index)}
        if owner["kind"] == "TrainJob":
            values |= {
                "PET_NNODES": str(count), "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": str(index),
                "PET_MASTER_ADDR": f"{name}-node-0-0.{name}", "PET_MASTER_PORT": "29500",
            }  # fmt: skip
        values |= {each["name"]: _value_of(each, labels) for each in container["env"]}
        words = [*container["command"], *container["args"]]
        for variable, value in values.items():
            words = [word.replace(f"$({variable})", value) for word in words]
        if owner["kind"] == "Job":
            yield f"{name}-{index}.{job['template']['spec']['subdomain']}", values, words
        else:
            yield f"{name}-node-0-{index}.{name}", values, words


def _value_of(entry: Document, labels: dict[str, str]) -> str:
    if "value" in entry:
        return entry["value"]
    field = entry["valueFrom"].get("fieldRef", {}).get("fieldPath", "")
    return labels[field.removeprefix("metadata.labels['").removesuffix("']")] if field else SECRET
