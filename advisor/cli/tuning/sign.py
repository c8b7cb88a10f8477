"""Signing a job with the owner's key, by OpenSSH: for agents that start signed jobs only."""

import secrets
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

from advisor.cli.exits import CommandFailed, Exit
from advisor.protocol.asked.jobs import NAMESPACE, JobSpec, Signature
from advisor.protocol.asked.signing import Statement
from advisor.protocol.training.workload import WITH_SECRETS

_NONCE_BYTES = 16


def sign_job(spec: JobSpec, key: Path, now: datetime, valid_s: float) -> JobSpec:
    """Return the job with its signature; `key` is a private key, or a public one whose private one ssh-agent holds.

    Raises `CommandFailed` where OpenSSH cannot sign with it.
    """
    statement = Statement(
        nonce=secrets.token_hex(_NONCE_BYTES),
        expires_at=now + timedelta(seconds=valid_s),
        job=spec.model_copy(update={"signed": None}),
    ).model_dump_json(context=WITH_SECRETS)
    signature = _sign(statement, key.expanduser())
    return spec.model_copy(update={"signed": Signature(statement=statement, signature=signature)})


def _sign(statement: str, key: Path) -> str:
    hint = "Give an Ed25519 key: ssh-keygen -t ed25519 makes one, ~/.ssh/id_ed25519 is its usual place."
    if not key.is_file():
        raise CommandFailed(Exit.USAGE, f"--sign {key}: there is no such file.", hint)
    words = ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", NAMESPACE]
    try:
        # The terminal stays its own: it may ask for a passphrase there, or for a touch of the security key.
        made = subprocess.run(words, input=statement.encode(), capture_output=True, check=False)
    except FileNotFoundError as error:
        raise CommandFailed(
            Exit.USAGE,
            "Jobs are signed by ssh-keygen, which is not on the PATH.",
            "Install OpenSSH's client.",
        ) from error
    if made.returncode != 0:
        told = made.stderr.decode(errors="replace").strip().splitlines()
        raise CommandFailed(Exit.USAGE, f"--sign {key}: {told[-1] if told else 'it cannot sign'}", hint)
    return made.stdout.decode()
