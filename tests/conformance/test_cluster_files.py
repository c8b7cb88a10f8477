"""The manifests of docs/cluster/ judged by Kubernetes' schemas, as they stand and as Helm renders them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from advisor.here.environments import find_place
from tests.samples.cluster_files import KUBERNETES, MANIFESTS, Document, job_of, list_nodes, load

from .conftest import HERE, provide_environment

pytestmark = pytest.mark.conformance
TIMEOUT_S = 120
VERSIONS = ("1.31", "1.34", "1.37")
"""Of Kubernetes: the first with a stable policy for failed pods, the newest, and one between them."""
OPERATORS = {"JobSet", "TrainJob", "ClusterTrainingRuntime"}
"""Kinds of others: tests/contracts/test_cluster_files.py has their schemas, all but the Jobs in them."""
RENDER = """
import json, sys
from helm_python import Chart
print("\\n".join(Chart.load(sys.argv[1]).render(json.loads(sys.argv[2]), name=sys.argv[3]).values()))
"""


@pytest.fixture(scope="session")
def python() -> Path:
    """Give the Python that has Kubernetes' schemas and Helm."""
    return provide_environment("schedulers", HERE / "requirements-schedulers.txt")


def render(python: Path, values: dict[str, Any], name: str) -> list[Document]:
    done = subprocess.run(
        [str(python), "-c", RENDER, str(KUBERNETES), json.dumps(values), name],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=True,
    )  # fmt: skip
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def judge(
    python: Path, folder: Path, documents: list[Document], version: str
) -> subprocess.CompletedProcess[str]:
    """Ask the schemas of a version about what Kubernetes itself defines in these objects."""
    jobs = [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": each["metadata"], "spec": job_of(each)}
        for each in documents
        if each["kind"] in OPERATORS and job_of(each)
    ]
    path = folder / "objects.yaml"
    path.write_text(
        yaml.safe_dump_all([*jobs, *(each for each in documents if each["kind"] not in OPERATORS)])
    )
    validate = python.with_name("kubernetes-validate")
    return subprocess.run(
        [str(validate), "--strict", "-k", version, str(path)],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_the_plain_files(version: str, python: Path, tmp_path: Path) -> None:
    documents = [each for name in MANIFESTS for each in load(name)]
    done = judge(python, tmp_path, documents, version)
    assert done.returncode == 0, done.stdout + done.stderr
    job_of(next(each for each in documents if each["kind"] == "JobSet"))["misspelt"] = 1
    assert judge(python, tmp_path, documents, version).returncode != 0, "the proof that the schema was read"


@pytest.mark.parametrize(("nodes", "gpus", "queue"), [(5, 4, "team-a"), (1, 0, "")])
def test_chart_gives_its_values_and_keeps_the_rest(
    nodes: int, gpus: int, queue: str, python: Path, tmp_path: Path
) -> None:
    values = {
        "files": MANIFESTS, "nodes": nodes, "gpus": gpus, "queue": queue, "image": "registry/train:3",
        "training": ["torchrun", "--nproc-per-node", "4", "other.py"],
    }  # fmt: skip
    documents = render(python, values, "mine")
    assert len(documents) == sum(len(load(name)) for name in MANIFESTS)
    done = judge(python, tmp_path, documents, VERSIONS[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    runtime = [each for each in documents if each["kind"] == "ClusterTrainingRuntime"]
    for kind, before in (("Job", []), ("JobSet", []), ("TrainJob", runtime)):
        owner = next(each for each in documents if each["kind"] == kind)
        assert owner["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name", "") == queue
        gang = list(list_nodes([*before, owner]))
        assert len(gang) == nodes
        for index, (_, environment, words) in enumerate(gang):
            place = find_place(environment, {}, None, 0.0, lambda _: "")
            assert (place.rank, place.count, place.head) == (index, nodes, gang[0][0])
            assert words[-1] == "other.py"
            assert "/kept/mine" in words
    replicas = {each["metadata"]["name"]: each["spec"].get("replicas") for each in documents
                if each["kind"] == "StatefulSet"}  # fmt: skip
    assert replicas == {"advisor-database": None, "advisor-server": 1, "advisor-agent": nodes}
    asked = [each for each in yaml.safe_dump(documents).splitlines() if "nvidia.com/gpu" in each]
    assert [int(each.split(":")[1]) for each in asked] == [gpus] * 4 * bool(gpus)


def test_chart_with_the_values_that_it_has_is_the_plain_files(python: Path) -> None:
    assert render(python, {"files": MANIFESTS}, "advisor-tune") == [
        each for name in MANIFESTS for each in load(name)
    ]
