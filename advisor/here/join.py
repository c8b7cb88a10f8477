"""How nodes find node 0 and prove to each other that they belong together: a secret, a file, a certificate."""

import fcntl
import hashlib
import hmac
import os
import secrets
import socket
import ssl
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from advisor.data_dir import refuse_others
from advisor.local.record import free_port
from advisor.local.server import LocalModeFailed
from advisor.protocol.base import Message

SECRET = "ADVISOR_JOIN_SECRET"  # noqa: S105 - the name of a variable
_SHORTEST = 16
_FIRST_PORT, _PORTS = 20_000, 10_000
_ADDRESS_OF = 0x8915
"""SIOCGIFADDR: an interface's IPv4 address."""


class Meeting(Message):
    """Where node 0 listens, and by which secret it is known. In the join file, which only its owner may read, too."""

    secret: str
    """Empty in the join file where the environment has it."""
    addresses: tuple[str, ...]
    port: int


def read_secret(environment: Mapping[str, str]) -> str:
    """Return the secret that the environment holds, or ""; raises `LocalModeFailed` for a short one."""
    secret = environment.get(SECRET, "").strip()
    if secret and len(secret) < _SHORTEST:
        raise LocalModeFailed(
            f"{SECRET} has {len(secret)} characters, which can be guessed.",
            f"Give every node the same {_SHORTEST} or more random ones: openssl rand -hex 32",
        )
    return secret


def leave_meeting(path: Path, environment: Mapping[str, str], head: str) -> Meeting:
    """Decide where node 0 listens, and leave that in the join file for nodes that see it."""
    given = read_secret(environment)
    # Without a shared folder the secret is all that nodes have in common: it says the port as well.
    meeting = Meeting(
        secret=given or secrets.token_hex(32),
        addresses=((head,) if head else ()) + list_addresses(),
        port=_port_of(given) if given else free_port(),
    )
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    body = meeting.model_copy(update={"secret": ""}) if given else meeting
    # Others see the whole file or none.
    descriptor, written = tempfile.mkstemp(dir=path.parent, prefix=".join-")
    with os.fdopen(descriptor, "w") as file:
        file.write(body.model_dump_json())
    Path(written).replace(path)
    return meeting


def find_meeting(path: Path, environment: Mapping[str, str], head: str) -> Meeting | None:
    """Return where node 0 can be expected; None while nothing says so. Raises NotPrivate for another user's word."""
    given = read_secret(environment)
    try:
        with path.open() as file:
            # Whoever writes it says for which server this node runs what it is told.
            refuse_others(path, os.fstat(file.fileno()))
            left = Meeting.model_validate_json(file.read())
    except (OSError, ValidationError):
        if not (given and head):
            return None
        return Meeting(secret=given, addresses=(head,), port=_port_of(given))
    return left.model_copy(update={"secret": given}) if given else left


def _port_of(secret: str) -> int:
    return _FIRST_PORT + int.from_bytes(hashlib.sha256(secret.encode()).digest()[:4]) % _PORTS


def list_addresses() -> tuple[str, ...]:
    """Return this host's IPv4 addresses beyond the loopback, and its name where it has none."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _ADDRESS_OF, struct.pack("256s", name.encode()))
            except OSError:
                continue  # it has none
            found.append(socket.inet_ntoa(answer[20:24]))
    return tuple(address for address in found if not address.startswith("127.")) or (socket.gethostname(),)


def open_tls(environment: Mapping[str, str]) -> tuple[ssl.SSLContext, bytes]:
    """Return node 0's side of TLS with a certificate made for this start, and its SHA-256.

    No authority has signed it: `prove` binds it to the secret. Raises `LocalModeFailed`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.TemporaryDirectory(prefix="advisor-") as folder:
        certificate = Path(environment.get("ADVISOR_TLS_CERTIFICATE") or f"{folder}/node0.pem")
        key = Path(environment.get("ADVISOR_TLS_KEY") or f"{folder}/node0.key")
        if not environment.get("ADVISOR_TLS_CERTIFICATE"):
            curve = ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
            words = ("req", "-x509", "-newkey", *curve, "-nodes", "-days", "30", "-subj", "/CN=node0")
            try:
                subprocess.run(
                    ["openssl", *words, "-keyout", key, "-out", certificate], check=True, capture_output=True
                )
            except (OSError, subprocess.CalledProcessError) as error:
                raise LocalModeFailed(
                    f"No certificate could be made for what nodes say to each other: {error}.",
                    "Install openssl, or name a certificate: ADVISOR_TLS_CERTIFICATE and ADVISOR_TLS_KEY.",
                ) from error
        context.load_cert_chain(certificate, key if key.exists() else None)
        shown = certificate.read_text()
    begin = shown.index("-----BEGIN CERTIFICATE")
    first = shown[begin : shown.index("-----END CERTIFICATE-----") + len("-----END CERTIFICATE-----")]
    return context, fingerprint(ssl.PEM_cert_to_DER_cert(first))


def fingerprint(certificate: bytes) -> bytes:
    """Return what stands for a certificate, which is in DER."""
    return hashlib.sha256(certificate).digest()


def trusting_tls() -> ssl.SSLContext:
    """Return the other nodes' side: any certificate is taken, and has to be proven by the secret."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def prove(secret: str, who: str, certificate_sha256: bytes, nonce: str) -> str:
    """Return what only a holder of the secret can say, of this very certificate and in answer to `nonce`."""
    message = b"\0".join((who.encode(), certificate_sha256, nonce.encode()))
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()
