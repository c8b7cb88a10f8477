"""The one folder of the agent's that a session's ranks may write to: the control socket, their beats and stacks.

It lies in the temporary directory, because a unix socket's path may have 107 bytes, and it goes with the session. The
agent's own folders (logs, spool, identity) are elsewhere and never shared.
"""

import hashlib
import shutil
import tempfile
from pathlib import Path

from agent.guard.account import Account


class RankFolder:
    """Made for one session, private to the user that its scripts run as."""

    def __init__(self, agent_marker: str, account: Account | None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_prefix(agent_marker)))
        if account is not None:
            account.give(str(self.path))

    def remove(self) -> None:
        """Delete the folder with everything that the ranks put into it."""
        shutil.rmtree(self.path, ignore_errors=True)


def remove_leftover_folders(agent_marker: str) -> None:
    """Delete what sessions of an agent that was killed left behind."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_prefix(agent_marker)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _prefix(agent_marker: str) -> str:
    return f"adv-{hashlib.sha256(agent_marker.encode()).hexdigest()[:10]}-"
