"""Tokens: who may ask for what. A token is `adv_<role>_<id>_<secret>`; only its secret's SHA-256 is stored."""

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from advisor.errors import TokenNotFound, Unauthenticated
from advisor.protocol.views import CreatedToken, Role, TokenPage
from advisor.storage import Database, UnitOfWork

_PREFIX = "adv"
_SECRET_BYTES = 32
FIRST_TOKENS = {Role.ADMIN: "admin-token", Role.AGENT: "agent-token"}
"""The tokens of a server's first start, with the files they are written to."""


@dataclass(frozen=True)
class Principal:
    """Who is asking."""

    token_id: str
    role: Role
    name: str
    """What the token was labelled with; it becomes the owner of submitted jobs."""
    agent_id: str | None = None
    """The agent that the token belongs to; None for people and for a token that agents register with."""
    agent: str | None = None
    """That agent's name."""


def authenticate(work: UnitOfWork, token: str, now: datetime) -> Principal:  # noqa: ARG001 - tokens may expire later
    """Return whose token this is. Raises Unauthenticated."""
    parts = token.split("_", 3)
    if len(parts) == 4 and parts[0] == _PREFIX and token.isascii():
        found = work.tokens.secret_of(parts[2])
        # The comparison comes last and takes the same time for every wrong secret.
        if found is not None and hmac.compare_digest(found[0], _hash(parts[3])):
            _, view, agent_id = found
            return Principal(view.id, view.role, view.label or view.role.value, agent_id, view.agent)
    raise Unauthenticated("The token is unknown or revoked.")


def create_token(
    work: UnitOfWork, role: Role, label: str, now: datetime, agent_id: str | None = None
) -> CreatedToken:
    """Make a token; the answer is the only place where it can be read."""
    token_id, secret = work.new_id(), secrets.token_urlsafe(_SECRET_BYTES)
    work.tokens.add(token_id, role, label, _hash(secret), now, agent_id)
    return CreatedToken(
        id=token_id,
        role=role,
        label=label,
        created_at=now,
        token=f"{_PREFIX}_{role.value}_{token_id}_{secret}",
    )


def list_tokens(work: UnitOfWork) -> TokenPage:
    """Return all tokens, newest first, without their secrets."""
    return TokenPage(items=tuple(work.tokens.all()))


def revoke_token(work: UnitOfWork, token_id: str, now: datetime) -> None:
    """Make a token useless at once; repeating it changes nothing. Raises TokenNotFound."""
    if not work.tokens.revoke(token_id, now) and not work.tokens.exists(token_id):
        raise TokenNotFound(f"There is no token {token_id}.")


def ensure_first_tokens(database: Database, data_dir: Path, now: datetime) -> None:
    """Make sure that an administrator and an agent can get in: a token each, in files only the owner can read.

    A file whose token still works is left alone; otherwise it is written anew.
    """
    for role, filename in FIRST_TOKENS.items():
        path = data_dir / filename
        if _works(database, path, role, now):
            continue
        with database.begin() as work:
            created = create_token(work, role, f"first {role.value}", now)
            # Before the commit: a file without its token is replaced at the next start, the reverse would lock
            # the administrator out.
            _write_private(path, created.token)


def _works(database: Database, path: Path, role: Role, now: datetime) -> bool:
    try:
        token = path.read_text().strip()
    except FileNotFoundError:
        return False
    with database.read() as work:
        try:
            return authenticate(work, token, now).role is role
        except Unauthenticated:
            return False


def _write_private(path: Path, token: str) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{token}\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
