"""Which jobs this agent starts where its operator wants them signed: those that a trusted key stands for.

The signatures are OpenSSH's (`ssh-keygen -Y`), and so are the keys. What is run is what was signed: of the server's
own words only the places of the gang are taken, and strategies that the signed job may try.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from advisor.protocol.asked.jobs import NAMESPACE, JobSpec, Signature
from advisor.protocol.asked.signing import Statement, explain_foreign_strategy
from advisor.protocol.measured.messages import Assignment
from advisor.protocol.reading import Unreadable, read_document
from agent.errors import BadConfiguration, NotSigned
from agent.trust.secrets import replace_file

_KINDS = ("ssh-ed25519", "sk-ssh-ed25519@openssh.com")
"""Kinds of keys that are taken: Ed25519, in a file or in a security key."""
_ANYBODY = "fleet-advisor"
"""Whom a key stands for that stands in its file without a name."""
_TIMEOUT_S = 20.0
_REMEMBERED_S = 30 * 86_400.0
"""Seconds beyond its end for which a signature's use is remembered."""


def read_time_of_day() -> float:
    """Return seconds of the clock of the day: only with it does a statement expire. No lease is counted by it."""
    return time.clock_gettime(time.CLOCK_REALTIME)


class TrustedSigners:
    """The keys that this agent trusts, and the statements that it has seen."""

    def __init__(self, key_file: Path, work_dir: Path, clock: Callable[[], float] = read_time_of_day) -> None:
        """Raises BadConfiguration for a file that holds no such key, and where OpenSSH is missing."""
        self._clock = clock
        self._seen_path = work_dir / "signed-jobs.json"
        self._signers = _read_keys(key_file)
        try:
            _run(["-Y", "check-novalidate"], b"")
        except FileNotFoundError as error:
            raise BadConfiguration(
                "Signatures are checked by ssh-keygen, which is not on this agent's PATH. Install OpenSSH's client "
                "(openssh-client, openssh-clients), or start the agent without --require-signed."
            ) from error
        except NotSigned as error:
            raise BadConfiguration(str(error)) from error

    def prove(self, assignment: Assignment) -> tuple[Assignment, JobSpec]:
        """Return what may be started, as it was signed, and the job that it belongs to.

        Raises NotSigned with a sentence for the job's owner.
        """
        if assignment.signed is None:
            raise NotSigned(
                "This agent starts signed jobs only (--require-signed), and the job carries no signature. Sign it with "
                "a key that the agent's operator trusts: advisor submit JOB.YAML --sign ~/.ssh/id_ed25519"
            )
        self._check_signature(assignment.signed)
        try:
            statement = read_document(Statement, assignment.signed.statement)
        except Unreadable as error:
            raise NotSigned(f"What was signed makes no sense to this agent's release ({error}).") from error
        job = statement.job
        if statement.expires_at.timestamp() <= self._clock():
            raise NotSigned(
                f"The job's signature expired at {statement.expires_at:%Y-%m-%d %H:%M} UTC. Submit the job again, "
                "signed for longer (--sign-for 30d)."
            )
        if assignment.nnodes != job.nodes:
            raise NotSigned(
                f"The job was signed for {job.nodes} nodes, and the session has {assignment.nnodes}."
            )
        if why := explain_foreign_strategy(job, assignment.cold):
            raise NotSigned(why)
        self._take_nonce(statement, assignment.job_id)
        as_signed = {
            "workload": job.workload,
            "hang_timeout_s": job.patience_s,
            "session_timeout_s": min(assignment.session_timeout_s, job.session_timeout_s),
        }
        return assignment.model_copy(update=as_signed), job

    def _check_signature(self, signed: Signature) -> None:
        statement = signed.statement.encode()
        with tempfile.TemporaryDirectory(prefix="advisor-signature-") as folder:
            signature, signers = Path(folder, "signature"), Path(folder, "signers")
            signature.write_text(signed.signature)
            signers.write_text(self._signers)
            files = ["-s", str(signature), "-f", str(signers)]
            found = _run(["-Y", "find-principals", *files], b"")
            names = found.stdout.decode(errors="replace").split("\n")
            who = names[0].strip() if found.returncode == 0 else ""
            words = ["-Y", "verify", "-n", NAMESPACE, "-I", who, *files]
            if not who or _run(words, statement).returncode != 0:
                raise NotSigned(
                    "The job's signature is by no key that this agent trusts, or is not of this very job. Sign it with "
                    "such a key, or ask the agent's operator to add yours to the file of --require-signed."
                )

    def _take_nonce(self, statement: Statement, job_id: str) -> None:
        """Remember which job a statement is for. Raises NotSigned where it was for another one."""
        # Kept beyond its end: a clock that was set ahead for a while must not have forgotten it.
        now = self._clock() - _REMEMBERED_S
        seen = {n: known for n, known in self._read_seen().items() if known[1] > now}
        if statement.nonce in seen and seen[statement.nonce][0] != job_id:
            raise NotSigned(
                f"The job's signature was used before, for job {seen[statement.nonce][0]}. Sign the job anew."
            )
        if statement.nonce not in seen:
            seen[statement.nonce] = job_id, statement.expires_at.timestamp()
            replace_file(self._seen_path, json.dumps(seen))

    def _read_seen(self) -> dict[str, tuple[str, float]]:
        try:
            text = self._seen_path.read_text()
        except FileNotFoundError:
            return {}
        try:
            return read_document(dict[str, tuple[str, float]], text)
        except Unreadable as error:
            raise NotSigned(
                f"What this agent remembers of signatures cannot be read ({self._seen_path}: {error}), so one could be "
                "used twice. Its operator has to delete the file, and may want new signatures."
            ) from error


def _read_keys(path: Path) -> str:
    """Return the file's keys as `ssh-keygen` wants them: each with a name before it. Raises BadConfiguration."""
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except OSError as error:
        raise BadConfiguration(
            f"The keys of --require-signed cannot be read: {path}: {error.strerror}."
        ) from error
    keys = [line for line in lines if line and not line.startswith("#")]
    for line in keys:
        if not set(_KINDS) & set(line.split()):
            raise BadConfiguration(
                f"{path} holds a line without an Ed25519 key: {line[:60]!r}. Write keys as in an id_ed25519.pub, or as "
                "in an allowed_signers file of OpenSSH's."
            )
    if not keys:
        raise BadConfiguration(
            f"{path} holds no key, so that no job could ever start. Add an id_ed25519.pub."
        )
    return "".join(f"{_ANYBODY} {line}\n" if line.split()[0] in _KINDS else f"{line}\n" for line in keys)


def _run(words: Sequence[str], text: bytes) -> "subprocess.CompletedProcess[bytes]":
    try:
        return subprocess.run(
            ["ssh-keygen", *words], input=text, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NotSigned(f"ssh-keygen did not answer within {_TIMEOUT_S:g} s on the agent's node.") from error
