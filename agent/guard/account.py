"""The user that training scripts run as, where that is another one than the agent's. Standard library only.

A root agent with `run_as` gives its scripts no way to the agent: neither its memory, nor its files, nor its processes.
"""

import ctypes
import os
import pwd
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from agent.errors import BadConfiguration

_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_CAP_SYS_PTRACE = 19


@dataclass(frozen=True)
class Account:
    """A user of this node."""

    name: str
    user_id: int
    group_id: int
    home: str

    def environment(self) -> Mapping[str, str]:
        """Return the variables that say who one is."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}

    def give(self, path: str) -> None:
        """Make this user the owner of `path`."""
        os.chown(path, self.user_id, self.group_id)


def find_account(name: str) -> Account:
    """Return the user of that name; raises BadConfiguration when scripts cannot run as that user."""
    if os.geteuid() != 0:
        raise BadConfiguration(
            f"run_as = {name!r} needs an agent that runs as root: only root may start a process as another user. "
            "Start the agent as root, or remove run_as."
        )
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise BadConfiguration(
            f"run_as = {name!r}: this node has no such user. Create it (useradd), or name another one."
        ) from None
    if entry.pw_uid == 0:
        raise BadConfiguration(
            f"run_as = {name!r} is root itself: name an unprivileged user, or remove run_as."
        )
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir)


@contextmanager
def acting_as(account: Account | None) -> Iterator[None]:
    """Let the calling process, which has one thread, have that user's rights over files and no others."""
    if account is None:
        yield
        return
    user, group, groups = os.geteuid(), os.getegid(), os.getgroups()
    os.initgroups(account.name, account.group_id)
    os.setegid(account.group_id)
    os.seteuid(account.user_id)
    try:
        yield
    finally:
        os.seteuid(user)
        os.setegid(group)
        os.setgroups(groups)


def become(account: Account | None) -> None:
    """Turn the calling process into that user for good; called in a fresh child right before it becomes the script.

    Without an account root stays root, but loses the right to look into other processes: the agent's memory holds
    its token.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if account is not None:
        os.initgroups(account.name, account.group_id)
        os.setgid(account.group_id)
        os.setuid(account.user_id)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    elif os.geteuid() == 0:
        libc.prctl(_PR_CAPBSET_DROP, _CAP_SYS_PTRACE, 0, 0, 0)
