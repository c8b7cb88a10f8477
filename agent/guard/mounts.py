"""Gives the calling process a private view of the file system: writes to some directories vanish, others are empty.

Standard library only, called in a fresh child right before it becomes the launcher. Reads see the real directories
(overlayfs: the real one below, a scratch directory above), but for those that hold the agent's secrets.
"""

import ctypes
import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import Any

from agent.guard.account import Account, acting_as

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_PRIVATE = 0x40000
_MNT_DETACH = 2


@dataclass(frozen=True)
class Overlay:
    """One directory whose writes go to a scratch directory instead."""

    target: str
    upper: str
    """Receives what is written; empty at the start."""
    work: str
    """Overlayfs's own scratch, on the same file system as `upper`."""
    is_listed: bool = True
    """Whether its names may be read there; else it may only be passed through."""
    is_needed: bool = True
    """Whether nothing is started where it cannot be mounted; else the directory stays real."""


@dataclass(frozen=True)
class MountPlan:
    """Everything `enter` does, in this order."""

    overlays: tuple[Overlay, ...] = ()
    """Each behind those that it lies in."""
    hidden: tuple[str, ...] = ()
    """Files and directories that exist and are shown empty."""
    empty: str = ""
    """An empty directory to show in their place."""
    keep: tuple[str, ...] = ()
    """Directories that stay real although an overlay covers them: the session's own."""
    user_namespace: bool = False
    """Not root: mount inside a user namespace of our own, as the same user."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data for the shim."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "MountPlan":
        """Return the plan that `to_json` wrote."""
        overlays = tuple(Overlay(**overlay) for overlay in data["overlays"])
        return cls(
            overlays,
            tuple(data["hidden"]),
            str(data["empty"]),
            tuple(data["keep"]),
            bool(data["user_namespace"]),
        )


def enter(plan: MountPlan, account: Account | None = None) -> list[str]:
    """Move this process into a private mount namespace and mount the plan; raises OSError naming the step.

    Returns the directories that overlays cover now.

    What is covered is opened as `account`: whatever stands there by now, it must be able to enter it by itself.
    """
    if not plan.overlays and not plan.hidden:
        return []
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    flags = _CLONE_NEWNS | (_CLONE_NEWUSER if plan.user_namespace else 0)
    _check(libc.unshare(flags), "unshare")
    if plan.user_namespace:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    _check(libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "make / private")
    # Opened before anything is covered: later only these descriptors lead to the real directories.
    with acting_as(account):
        lowers = [_open_entered(overlay) for overlay in plan.overlays]
    kept = [os.open(directory, os.O_PATH | os.O_DIRECTORY) for directory in plan.keep]
    nothing = [os.open(plan.empty, os.O_PATH | os.O_DIRECTORY)] if plan.hidden else []
    covered = []
    for overlay, lower in zip(plan.overlays, lowers, strict=True):
        if lower is not None and _cover(libc, overlay, lower, plan.user_namespace, account):
            covered.append(overlay.target)
    for path in plan.hidden:
        source = f"/proc/self/fd/{nothing[0]}" if os.path.isdir(path) else os.devnull
        _bind(libc, source, path, "hide")
    for directory, descriptor in zip(plan.keep, kept, strict=True):
        _bind(libc, f"/proc/self/fd/{descriptor}", directory, "keep")
    for descriptor in filter(None, (*lowers, *kept, *nothing)):
        os.close(descriptor)
    return covered


def _cover(
    libc: ctypes.CDLL, overlay: Overlay, lower: int, user_namespace: bool, account: Account | None
) -> bool:
    """Mount an overlay; False where one that is not needed cannot be mounted, or hides what the account could read."""
    try:
        _mount_overlay(libc, overlay, lower, user_namespace)
    except OSError:
        if overlay.is_needed:
            raise
        return False
    if overlay.is_needed:
        return True
    try:
        with acting_as(account):
            os.listdir(overlay.target)
    except OSError:
        _check(libc.umount2(os.fsencode(overlay.target), _MNT_DETACH), f"uncover {overlay.target}")
        return False
    return True


def _open_entered(overlay: Overlay) -> int | None:
    flags = os.O_RDONLY if overlay.is_listed else os.O_PATH
    try:
        # The dot asks for the right to enter, which opening alone does not.
        return os.open(os.path.join(overlay.target, "."), flags | os.O_DIRECTORY | os.O_NONBLOCK)
    except OSError as error:
        if not overlay.is_needed:
            return None
        raise OSError(error.errno, error.strerror, overlay.target) from None


def _bind(libc: ctypes.CDLL, source: str, target: str, purpose: str) -> None:
    done = libc.mount(os.fsencode(source), os.fsencode(target), None, _MS_BIND | _MS_REC, None)
    _check(done, f"{purpose} {target}")


def _mount_overlay(libc: ctypes.CDLL, overlay: Overlay, lower: int, user_namespace: bool) -> None:
    # Paths by descriptor: no escaping of commas and colons, no limit on their length.
    upper = os.open(overlay.upper, os.O_PATH | os.O_DIRECTORY)
    work = os.open(overlay.work, os.O_PATH | os.O_DIRECTORY)
    options = f"lowerdir=/proc/self/fd/{lower},upperdir=/proc/self/fd/{upper},workdir=/proc/self/fd/{work}"
    if user_namespace:
        options += ",userxattr"
    done = libc.mount(b"overlay", os.fsencode(overlay.target), b"overlay", 0, options.encode())
    _check(done, f"overlay {overlay.target}")
    os.close(upper)
    os.close(work)


def _check(result: int, step: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{step}: {os.strerror(number)}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _probe(plan: str, file: str) -> None:
    """Enter the plan and write to a file that it covers."""
    try:
        enter(MountPlan.from_json(json.loads(plan)))
        _write(file, "changed")
    except OSError as error:
        sys.exit(str(error.strerror))


if __name__ == "__main__":
    _probe(sys.argv[1], sys.argv[2])
