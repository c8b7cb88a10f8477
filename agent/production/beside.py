"""Processes beside a real training: nobody's children, so that no launcher waits for them; they end with the training.

Where the command takes over whatever has lost its parent (a container's first process), they are its children still.
Run as `python -m agent.production.beside`, one removes a folder once the training has ended. Standard library only.
"""

import os
import select
import shutil
import subprocess
import sys


class Training:
    """The process that becomes the user's command, as one beside it sees it."""

    def __init__(self) -> None:
        """Take the descriptors that `start_beside` hands over."""
        self._process, self._ready, self._pid = (int(word) for word in sys.argv.pop().split(","))

    @property
    def is_our_parent(self) -> bool:
        """Whether the command may wait for this process to end."""
        return os.getppid() == self._pid

    def has_ended(self, wait_s: float = 0.0) -> bool:
        """Whether the process is gone, looked at for so long at most."""
        return bool(select.select([self._process], [], [], wait_s)[0])

    def wait_ended(self) -> None:
        """Return once the process is gone."""
        select.select([self._process], [], [])

    def say_ready(self) -> None:
        """Let the training start."""
        os.write(self._ready, b"\n")
        os.close(self._ready)


def start_beside(module: str, word: str, within_s: float) -> bool:
    """Start a module of ours beside the command that this process is about to become; return whether it is ready."""
    process, (reading, writing) = os.pidfd_open(os.getpid()), os.pipe()
    words = [sys.executable, "-P", "-m", module, word, f"{process},{writing},{os.getpid()}"]
    # The child in between ends at once, so that the new process never is a child of the command's.
    between = os.fork()
    if between == 0:
        try:
            subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(process, writing)
            )
        finally:
            os._exit(0)
    os.waitpid(between, 0)
    os.close(writing)
    os.close(process)
    is_ready = bool(select.select([reading], [], [], within_s)[0]) and os.read(reading, 1) == b"\n"
    os.close(reading)
    return is_ready


def main() -> None:
    """Remove the folder that the first argument names when the training has ended; it stays where that waits for us."""
    training = Training()
    training.say_ready()
    if training.is_our_parent:
        return
    training.wait_ended()
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
