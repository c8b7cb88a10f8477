"""Links that sign the owner of a data directory in to its pages, each once and only for a while.

A link is an empty file named by the hash of its secret: who writes there could read the administrator's token as
well. The file that is removed first is the one use, also among several that ask at once.
"""

import os
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path

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
