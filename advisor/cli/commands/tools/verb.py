"""One verb of the command line in a process of its own: its words are passed on, and a caller that leaves ends it."""

import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL

import anyio
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.text import TextReceiveStream

from advisor.local.process import PYTHON, descendants

_SILENT_S = 5.0
"""A caller that hears nothing for longer may take the call for dead."""
_STOP_S = 60.0
"""Agents wait for their training processes to be gone, and the server for its agents."""


@dataclass(frozen=True)
class Ended:
    """How it ended."""

    exit_code: int
    out: str
    """What it wrote to standard output."""
    told: tuple[str, ...]
    """The lines that it wrote to standard error."""


async def run_verb(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    tell: Callable[[float, str], Awaitable[None]],
) -> Ended:
    """Run `advisor` with these words in `folder`; `tell` hears the seconds so far and the line that came last.

    Where the caller is cancelled it is asked to stop, as by Ctrl-C, and waited for. Where this process dies, the
    kernel asks it to.
    """
    guarded = [*PYTHON, "-m", "advisor.local.guard", str(os.getpid()), *PYTHON, "-m", "advisor", *words]
    process = await anyio.open_process(
        guarded, stdin=DEVNULL, cwd=folder, env=environment, start_new_session=True
    )
    assert process.stdout is not None  # both are pipes
    assert process.stderr is not None
    begun, told = time.monotonic(), [""]
    written: list[str] = []

    async def tell_silence() -> None:
        while True:
            await anyio.sleep(_SILENT_S)
            await tell(time.monotonic() - begun, told[-1])

    try:
        async with anyio.create_task_group() as beside:
            beside.start_soon(tell_silence)
            async with anyio.create_task_group() as reading:
                reading.start_soon(_collect, process.stdout, written)
                rest = ""
                async for text in TextReceiveStream(process.stderr, errors="replace"):
                    *lines, rest = (rest + text).split("\n")
                    for line in filter(_is_for_callers, lines):
                        told.append(line)
                        await tell(time.monotonic() - begun, line)
            await process.wait()
            beside.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _stop(process)
    return Ended(process.returncode or 0, "".join(written), tuple(told[1:]))


def _is_for_callers(line: str) -> bool:
    """Not the page's address: whoever opens it is signed in as the administrator of this machine's server."""
    return bool(line.strip()) and "/enter/" not in line


async def _collect(stream: ByteReceiveStream, written: list[str]) -> None:
    async for text in TextReceiveStream(stream, errors="replace"):
        written.append(text)


async def _stop(process: Process) -> None:
    if process.returncode is None:
        process.terminate()
        with anyio.move_on_after(_STOP_S):
            await process.wait()
    if process.returncode is None:
        for pid in [*descendants(process.pid), process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    await process.aclose()
