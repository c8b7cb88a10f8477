"""`python -m advisor.local.guard PARENT COMMAND…`: become COMMAND, and be asked to stop when PARENT dies.

A command that is killed (SIGKILL, a closed terminal, a crash) can stop nothing any more; the kernel then
sends SIGTERM to what it started. Linux only; elsewhere COMMAND simply runs.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Replace this process by the command."""
    parent, command = int(arguments[0]), arguments[1:]
    # A batch system's warning reaches every process of its step. The parent acts on it, in order; this one ignores it.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        # The parent may have died before the request was made; then no signal will come.
        if os.getppid() != parent:
            sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
