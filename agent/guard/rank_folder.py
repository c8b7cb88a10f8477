"""A session's folder on this node: the agent's own, where it lays out what the ranks read; in it one that is theirs.

The agent may be root, and the ranks another user's. Whoever may write in a folder may put a link there at any moment,
so the agent writes in no folder that it has given away. Standard library only.
"""

import hashlib
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

from agent.guard.account import Account

_LONGEST_SOCKET = 107
_BELOW = len("/adv-0123456789-12345678/output")
"""What a socket's path is longer than the temporary folder's."""


class RankFolder:
    """Made for one session; nobody but the agent and the user that its scripts run as can read anything in it."""

    def __init__(self, agent_marker: str, account: Account | None) -> None:
        self._account = account
        self.path = Path(tempfile.mkdtemp(prefix=name_folder(agent_marker), dir=choose_temporary()))
        self.ranks = self.path / "ranks"
        """The part that the ranks write to."""
        self.ranks.mkdir(mode=0o700)
        if account is not None:
            account.give(str(self.ranks))
            self.path.chmod(0o711)

    def lay_out(self, files: Mapping[str, str]) -> None:
        """Write files for the ranks, by their names or `folder/name`; raises OSError where one is there already."""
        lay_out(self.path, files, self._account)

    def remove(self) -> None:
        """Delete the folder with everything that the ranks put into it."""
        shutil.rmtree(self.path, ignore_errors=True)


def lay_out(folder: Path, files: Mapping[str, str], account: Account | None = None) -> None:
    """Write files into a folder of the caller's own, by their names or `folder/name`, for the account's processes.

    Raises OSError where one is there already, and PermissionError for a folder in which others may write.
    """
    _refuse_foreign(folder)
    for name, text in files.items():
        path = folder / name
        if path.parent != folder:
            path.parent.mkdir(mode=0o755, exist_ok=True)
            path.parent.chmod(0o755)
        new = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(new, "w", encoding="utf-8") as file:
            file.write(text)
            if account is not None:
                os.fchown(new, account.user_id, account.group_id)


def open_socket(folder: Path, name: str, kind: socket.SocketKind, account: Account | None) -> socket.socket:
    """Return a unix socket in the agent's folder to which the account's processes, or the agent's own, may connect.

    Raises OSError where that cannot be, PermissionError for a folder in which others may write.
    """
    _refuse_foreign(folder)
    path = str(folder / name)
    opened = socket.socket(socket.AF_UNIX, kind)
    opened.bind(path)
    os.chmod(path, 0o600)
    if account is not None:
        account.give(path)
    return opened


def _refuse_foreign(folder: Path) -> None:
    facts = os.stat(folder)
    if facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise PermissionError(f"{folder} may be written to by others, so nothing is laid out there")


def remove_leftover_folders(agent_marker: str) -> None:
    """Delete what sessions of an agent that was killed left behind."""
    for folder in choose_temporary().glob(f"{name_folder(agent_marker)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def choose_temporary() -> Path:
    """Return where such folders lie: the temporary folder, or /tmp where a socket's path in that one would be too long.

    A socket's path has 107 bytes at most on Linux, and the temporary folders of some clusters have long names.
    """
    wanted = Path(tempfile.gettempdir())
    return wanted if len(os.fsencode(wanted)) + _BELOW <= _LONGEST_SOCKET else Path("/tmp")  # noqa: S108


def name_folder(agent_marker: str) -> str:
    """Return how the names of an agent's folders begin."""
    return f"adv-{hashlib.sha256(agent_marker.encode()).hexdigest()[:10]}-"
