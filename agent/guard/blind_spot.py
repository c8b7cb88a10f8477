"""Finds out whether the guard would find a session's processes by the environment that they were started with."""

import os
import secrets
import subprocess
import time

from agent.guard.account import Account
from agent.guard.processes import list_marked

_PATIENCE_S = 2.0


def find_blind_spot(account: Account | None) -> str:
    """Return why processes of `account` (None: the agent's own user) would not be found, or "" where they are."""
    mark = secrets.token_hex(8)
    probe = subprocess.Popen(
        ["sleep", "30"],
        env={"ADVISOR_PROBE": mark, "PATH": os.environ.get("PATH", os.defpath)},
        user=account.user_id if account else None,
        group=account.group_id if account else None,
        extra_groups=[] if account else None,
    )
    deadline = time.monotonic() + _PATIENCE_S
    while not (found := list_marked(ADVISOR_PROBE=mark)) and time.monotonic() < deadline:
        time.sleep(0.01)
    probe.kill()
    probe.wait()
    if found:
        return ""
    if account is None:
        return "/proc does not show other processes' environment: mount it without hidepid."
    return (
        f"/proc does not show the environment of {account.name}'s processes: who loses both guards is not found. "
        "Give the container the capability SYS_PTRACE."
    )
