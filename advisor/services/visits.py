"""How a browser is signed in: by a token, or once by a link; a random key, its cookie, stands for the token then.

Only the key's hash is stored. A visit is as good as its token: it ends with it, and after a while without use. A link
signs the owner of a data directory in, and only for a while. It is an empty file named by the hash of its secret: who
writes there could read the administrator's token as well. The process that removes the file uses the link.
"""

import os
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path

from advisor.errors import Unauthenticated
from advisor.protocol.views import Role
from advisor.services.tokens import NOTE_AFTER, Principal, authenticate, find_principal, hash_secret
from advisor.storage import UnitOfWork

IDLE = timedelta(hours=12)
MOST_OF_A_TOKEN = 100


def open_visit(work: UnitOfWork, key: str, token: str, now: datetime) -> None:
    """Sign in with a token of a person. Raises Unauthenticated, also for a token that is an agent's."""
    principal = authenticate(work, token, now)
    if principal.role is Role.AGENT:
        raise Unauthenticated("The token is an agent's: no person signs in with it.")
    work.visits.make_room(principal.token_id, MOST_OF_A_TOKEN - 1, now - IDLE)
    work.visits.add(hash_secret(key), principal.token_id, now)
    work.tokens.mark_used(principal.token_id, now)


def find_visit(work: UnitOfWork, key: str, now: datetime) -> tuple[Principal, bool] | None:
    """Return whose visit this is, and whether it should be marked as seen; None for one that is over or never was."""
    found = work.visits.find(hash_secret(key))
    if found is None or now - found[1] > IDLE:
        return None
    principal = find_principal(work, found[0], now)
    if principal is None or principal.spent:
        return None
    return principal, now - found[1] >= NOTE_AFTER


def close_visit(work: UnitOfWork, key: str) -> None:
    """End the visit of this key: the browser has to sign in again."""
    work.visits.remove(hash_secret(key))


def mark_visit(work: UnitOfWork, key: str, principal: Principal, now: datetime) -> None:
    """Note that the browser was there, which is a use of the visit's token too."""
    work.visits.mark(hash_secret(key), now)
    work.tokens.mark_used(principal.token_id, now)


LASTS = timedelta(minutes=10)
_FOLDER, _TOKEN = "sign-in-links", "admin-token"


def make_link(data_dir: Path, now: datetime, new_secret: Callable[[], str] = secrets.token_urlsafe) -> str:
    """Return the secret of a new link; those that have ended are removed. Raises OSError."""
    folder = data_dir / _FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.stat().st_mtime < (now - LASTS).timestamp():
            old.unlink(missing_ok=True)
    secret = new_secret()
    file = folder / _name(secret)
    file.touch(mode=0o600, exist_ok=False)
    os.utime(file, (now.timestamp(), now.timestamp()))
    return secret


def take_link(data_dir: Path, secret: str, now: datetime) -> str | None:
    """Return the administrator's token for the secret of a link, which is used up by that; None for any other."""
    file = data_dir / _FOLDER / _name(secret)
    try:
        made_s = file.stat().st_mtime
        file.unlink()
        return (
            (data_dir / _TOKEN).read_text().strip()
            if now.timestamp() - made_s < LASTS.total_seconds()
            else None
        )
    except OSError:
        return None


def _name(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()
