"""Where this machine's server keeps its data, and that nobody else can put anything there.

By itself: a command that needs only the path loads no settings.
"""

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path


def default_data_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the data directory of a user who names none."""
    base = Path(environment.get("XDG_DATA_HOME") or "")
    # A relative one is to be ignored: freedesktop's Base Directory Specification.
    return (base if base.is_absolute() else Path.home() / ".local" / "share") / "fleet-advisor"


def data_dir_of(environment: Mapping[str, str]) -> Path:
    """Return the data directory of this machine's server."""
    return Path(environment.get("ADVISOR_DATA_DIR") or default_data_dir(environment)).expanduser().resolve()


class NotPrivate(Exception):
    """Others may write where secrets are kept, or somebody else owns it; `hint` says what to do."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} {why}: whoever can write there can have this command use what they like.")
        self.hint = "Name a directory of your own that others cannot write to (chmod go-w)."


def make_private(directory: Path) -> None:
    """Make the directory, which holds tokens, for its owner only; where it is there, let nobody else write in it.

    One that others share, by its mode or by what lies in it, is not closed to them. Raises NotPrivate for it, and for
    another user's.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    facts = directory.stat()
    if facts.st_uid == os.geteuid() and facts.st_mode & 0o022 and not _is_shared(directory, facts):
        directory.chmod(facts.st_mode & 0o7755)
        facts = directory.stat()
    refuse_others(directory, facts)


def _is_shared(directory: Path, facts: os.stat_result) -> bool:
    with os.scandir(directory) as entries:
        owners = {entry.stat(follow_symlinks=False).st_uid for entry in entries}
    return bool(facts.st_mode & stat.S_ISVTX) or not owners <= {os.geteuid()}


def refuse_others(path: Path, facts: os.stat_result) -> None:
    """Raise NotPrivate for a file or directory that is another user's than this one's or root's, or open to all."""
    if facts.st_uid not in {0, os.geteuid()} and facts.st_uid != _own_user_beside(path):
        raise NotPrivate(path, "belongs to another user")
    # Root may have given a group its directory, as Kubernetes does with a volume.
    if facts.st_mode & (0o002 if facts.st_uid == 0 != os.geteuid() else 0o022):
        raise NotPrivate(path, "may be written to by others")


def _own_user_beside(path: Path) -> int | None:
    """Return whom a file that we make there belongs to: a network file system may know root by another number."""
    try:
        with tempfile.TemporaryFile(dir=path if path.is_dir() else path.parent) as file:
            return os.fstat(file.fileno()).st_uid
    except OSError:
        return None
