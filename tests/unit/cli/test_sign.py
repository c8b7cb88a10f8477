"""`--sign`: a job leaves with its owner's signature."""

import subprocess
from pathlib import Path

from advisor.protocol.asked.jobs import JobState
from advisor.protocol.asked.signing import Statement, is_for

from .conftest import Run
from .fake_server import FakeServer


def test_job_is_signed_with_the_key_that_is_named(server: FakeServer, run: Run, tmp_path: Path) -> None:
    key = tmp_path / "ada"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    for words in (
        ("submit", str(write_job(tmp_path)), "--detach", "--sign", str(key)),
        ("tune", "--new", "--sign", str(key), "--sign-for", "12h", "--", "torchrun", "train.py"),
        (
            "verify",
            "--set",
            "num_threads=1",
            "--sign",
            str(key),
            "--sign-for",
            "12h",
            "--",
            "torchrun",
            "train.py",
        ),
    ):
        server.lives["new-1"] = [JobState.CANCELLED]
        run(*words)
        spec = server.submitted.pop()
        assert spec.signed is not None
        statement = Statement.model_validate_json(spec.signed.statement)
        assert is_for(statement.job, spec)
        assert "BEGIN SSH SIGNATURE" in spec.signed.signature


def test_key_that_cannot_sign_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "nonsense").write_text("no key")
    for name in ("missing", "nonsense"):
        refused = run("submit", str(write_job(tmp_path)), "--sign", str(tmp_path / name))
        assert refused.exit_code == 2
        assert "--sign" in refused.stderr
        assert "ssh-keygen -t ed25519" in refused.stderr


def write_job(folder: Path) -> Path:
    path = folder / "job.yaml"
    path.write_text("workload:\n  command: torchrun train.py\n")
    return path
