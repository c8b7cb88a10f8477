"""nccl.conf read by the real NCCL, and job.yaml judged by the schemas of Kubernetes. Slurm is not to be had here."""

import json
import subprocess
from pathlib import Path

import pytest

from advisor.exporters import export

from .conftest import HERE, provide_environment

pytestmark = pytest.mark.conformance
TIMEOUT_S = 60
VERSIONS = ("1.28", "1.34")
"""Of Kubernetes: the first with stable indexed Jobs' labels, and a recent one."""


@pytest.fixture(scope="session")
def schedulers_python() -> Path:
    """Give the Python that has NCCL and Kubernetes' schemas."""
    return provide_environment("schedulers", HERE / "requirements-schedulers.txt")


def test_nccl_reads_its_file_and_what_is_exported_already_wins(
    advise, schedulers_python, clean_environment, tmp_path
) -> None:
    changes = {"NCCL_BUFFSIZE": 2**23, "NCCL_SOCKET_NTHREADS": 4, "num_threads": 2}
    file = export(*advise(changes, backend="nccl"), "nccl")
    (tmp_path / file.filename).write_text(file.content)

    def read(**variables: str) -> dict[str, str | None]:
        done = subprocess.run(
            [str(schedulers_python), str(HERE / "read_nccl_conf.py"), "NCCL_BUFFSIZE", "NCCL_SOCKET_NTHREADS"],
            env={**clean_environment, **variables}, capture_output=True, text=True, timeout=TIMEOUT_S, check=True,
        )  # fmt: skip
        return json.loads(done.stdout.splitlines()[-1])

    named = {"NCCL_CONF_FILE": str(tmp_path / file.filename)}
    assert read() == {"NCCL_BUFFSIZE": None, "NCCL_SOCKET_NTHREADS": None}
    assert read(**named) == {"NCCL_BUFFSIZE": str(2**23), "NCCL_SOCKET_NTHREADS": "4"}
    assert read(**named, NCCL_SOCKET_NTHREADS="1")["NCCL_SOCKET_NTHREADS"] == "1"


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_kubernetes_takes_the_manifest(backend, advise, schedulers_python, tmp_path) -> None:
    advice, job = advise({"num_threads": 2}, nodes=2, world_size=4, name="7 of 9: café", backend=backend)
    path = tmp_path / "job.yaml"
    content = export(advice, job, "kubernetes").content
    validate = [str(schedulers_python.with_name("kubernetes-validate")), "--strict"]
    for version in VERSIONS:
        path.write_text(content)
        done = subprocess.run(
            [*validate, "-k", version, str(path)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        path.write_text(content.replace("completionMode", "completionmode"))
        wrong = subprocess.run(
            [*validate, "-k", version, str(path)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert wrong.returncode != 0, "the proof that the schema was read"
