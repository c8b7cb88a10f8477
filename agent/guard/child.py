"""A child that is asked in lines of JSON over its pipes: whatever holds it up, holds up nothing of ours."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_PACKAGE_ROOT = Path(__file__).parents[2]


class Child:
    """A process that writes a line for each line that it reads. Not for two threads at a time."""

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str], stderr: int | None = None
    ) -> None:
        """`words` are those behind `python`; `environment` is the child's, and lets it find our package."""
        path = [str(_PACKAGE_ROOT), *environment.get("PYTHONPATH", "").split(os.pathsep)]
        self.process = subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            cwd="/",
            start_new_session=True,  # Ctrl-C in the agent's terminal is the agent's to answer
            bufsize=0,
        )
        assert self.process.stdin is not None and self.process.stdout is not None  # noqa: PT018 - given by PIPE above
        self._pipes = self.process.stdin, self.process.stdout
        os.set_blocking(self.process.stdin.fileno(), False)
        self._unsent = self._received = b""
        self.has_ended = False

    def tell(self, said: Any) -> None:
        """Have a line sent, as soon as the child reads it and its answer is waited for."""
        self._unsent += json.dumps(said).encode() + b"\n"

    def receive(self, patience_s: float) -> dict[str, Any] | None:
        """Return the next answer, an empty one for what makes no sense; None when none comes in time, or ever will."""
        deadline_s = time.monotonic() + patience_s
        asking, answering = (pipe.fileno() for pipe in self._pipes)
        while b"\n" not in self._received and not self.has_ended:
            poller = select.poll()
            poller.register(answering, select.POLLIN)
            if self._unsent:
                poller.register(asking, select.POLLOUT)
            ready = dict(poller.poll(max(0.0, deadline_s - time.monotonic()) * 1000))
            if not ready:
                return None
            if answering in ready:
                part = os.read(answering, 65536)
                self._received, self.has_ended = self._received + part, not part
            else:
                try:
                    self._unsent = self._unsent[os.write(asking, self._unsent) :]
                except BrokenPipeError:
                    self.has_ended = True
        if b"\n" not in self._received:
            return None
        line, _, self._received = self._received.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError:
            return {}
        return answer if isinstance(answer, dict) else {}

    def end(self) -> bool:
        """Kill the child; return whether it is gone: one that the kernel holds is left to itself."""
        self.process.kill()
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=1.0)
        return self.process.poll() is not None
