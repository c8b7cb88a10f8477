"""`advisor serve` for real, and the commands of a user against it."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from advisor.local.record import running_server

from .conftest import advisor, environment_on, processes_of, start_server

JOB = "name: big\nnodes: 2\nworkload:\n  command: torchrun --nproc-per-node 2 train.py\n"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a user on a machine where a server runs: one for all tests, a start takes seconds."""
    environment = environment_on(tmp_path_factory.mktemp("shared") / "data")
    process = start_server(Path(environment["ADVISOR_DATA_DIR"]), environment)
    yield environment
    process.terminate()
    process.communicate(timeout=30)


def test_log_for_programs_holds_an_object_a_line(tmp_path: Path) -> None:
    environment = environment_on(tmp_path / "data") | {"ADVISOR_LOG_FORMAT": "json"}
    process = start_server(tmp_path / "data", environment)
    process.terminate()
    _, told = process.communicate(timeout=30)
    lines = [json.loads(line) for line in told.splitlines()]
    assert [line["status"] for line in lines if line.get("route") == "/readyz"][-1] == 200


def read_peak_bytes(pid: int) -> int:
    """Return the most that a process has had resident since that was last reset."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def send_in_chunks(url: str, megabytes: int) -> bytes:
    """Send a body that does not say how long it is, until the server hangs up; return the answer's first line."""
    address = urlsplit(url)
    chunk = b"100000\r\n" + b" " * 2**20 + b"\r\n"
    head = b"POST /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=30) as connection:
        connection.sendall(head + b"transfer-encoding: chunked\r\n\r\n" + chunk + chunk)
        answer = connection.recv(12)
        with suppress(OSError):
            for _ in range(megabytes - 2):
                connection.sendall(chunk)
    return answer


def test_a_body_of_20_mb_is_refused_and_costs_no_memory(shared: dict[str, str]) -> None:
    record = running_server(Path(shared["ADVISOR_DATA_DIR"]))
    assert record is not None
    send_in_chunks(record.url, 2)  # what a first answer of this kind loads
    Path(f"/proc/{record.pid}/clear_refs").write_text("5")  # the peak begins anew
    before = read_peak_bytes(record.pid)
    assert send_in_chunks(record.url, 20) == b"HTTP/1.1 413"
    assert read_peak_bytes(record.pid) - before < 8 * 2**20


def test_a_job_is_submitted_listed_shown_and_cancelled(shared: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return advisor(*words, environment=shared, cwd=tmp_path)

    dry = run("submit", "job.yaml", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert json.loads(run("jobs", "--state", "queued", "--json").stdout) == {"items": []}

    submitted = run("submit", "job.yaml", "--detach")
    assert submitted.returncode == 0, submitted.stderr
    job_id = submitted.stdout.strip()
    listed = json.loads(run("jobs", "--state", "queued", "--json").stdout)["items"]
    assert [(job["id"], job["spec"]["name"], job["state"]) for job in listed] == [(job_id, "big", "queued")]
    assert json.loads(run("show", job_id[:6], "--json").stdout)["id"] == job_id
    assert run("advice", "last").returncode == 101

    cancelled = run("cancel", "big")
    assert cancelled.returncode == 0, cancelled.stderr
    watched = run("watch", "last", "--json")
    assert watched.returncode == 103, watched.stderr
    sentences = [json.loads(line)["sentence"] for line in watched.stdout.splitlines()]
    assert len(sentences) >= 2
    assert run("show", "last").stdout


def test_what_the_server_refuses_is_explained(shared: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB + "knobs: [nccl_comm_num]\nfreeze: [nccl_comm_num]\n")
    refused = advisor("submit", "job.yaml", "--dry-run", environment=shared, cwd=tmp_path)
    assert refused.returncode == 3, refused.stderr
    assert "nccl_comm_num: in knobs and in freeze" in refused.stderr

    stranger = shared | {"ADVISOR_TOKEN": "adv_viewer_nobody_nothing"}
    assert advisor("jobs", environment=stranger, cwd=tmp_path).returncode == 4
    assert advisor("show", "nothing", environment=shared, cwd=tmp_path).returncode == 102


def test_tokens_are_made_listed_and_revoked(shared: dict[str, str], tmp_path: Path) -> None:
    made = advisor("token", "create", "--role", "viewer", "--label", "ci", environment=shared, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    viewer = shared | {"ADVISOR_TOKEN": made.stdout.strip()}
    assert advisor("jobs", environment=viewer, cwd=tmp_path).returncode == 0
    assert advisor("token", "list", environment=viewer, cwd=tmp_path).returncode == 4
    tokens = json.loads(advisor("token", "list", "--json", environment=shared, cwd=tmp_path).stdout)["items"]
    [token_id] = [token["id"] for token in tokens if token["label"] == "ci"]
    assert advisor("token", "revoke", token_id, environment=shared, cwd=tmp_path).returncode == 0
    assert advisor("jobs", environment=viewer, cwd=tmp_path).returncode == 4


def test_server_is_alone_on_its_data_and_forgotten_when_it_was_asked_to_stop(
    data_dir: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    server = start_server(data_dir, environment)
    record = running_server(data_dir)
    assert record is not None
    second = advisor("serve", "--port", "0", environment=environment, cwd=tmp_path)
    assert second.returncode == 1
    assert record.url in second.stderr
    elsewhere = environment | {"ADVISOR_DATABASE_URL": f"sqlite:///{data_dir / 'advisor.db'}"}
    words = ("serve", "--port", "0", "--data-dir", str(tmp_path / "other"))
    third = advisor(*words, environment=elsewhere, cwd=tmp_path)
    assert third.returncode == 1
    assert f"Another server (process {server.pid}) has the database" in third.stderr
    assert "Traceback" not in third.stderr

    os.kill(server.pid, signal.SIGTERM)
    server.communicate(timeout=30)
    assert server.returncode == 0
    assert running_server(data_dir) is None
    assert not (data_dir / "server.json").exists()
    assert not processes_of(data_dir)
    assert advisor("token", "list", environment=environment, cwd=tmp_path).returncode == 5
