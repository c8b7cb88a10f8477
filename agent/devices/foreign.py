"""Finds out whether another process computes on the GPUs before a session starts; never touches them.

A measurement beside another load is worth nothing, and the other's work would suffer as well.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

from agent.devices.gpus import DeviceProcess, Gpus
from agent.errors import DevicesBusy
from agent.settings import AgentSettings

_PATIENCE_S = 8.0
"""Ranks of the session before take a while to give back their device memory."""
_START_S = 60.0
_PAUSE_S = 0.25


def refuse_busy_gpus(gpus: Gpus, settings: AgentSettings, stopping: Callable[[float], bool]) -> list[str]:
    """Raise DevicesBusy when another process computes on the GPUs; return a warning where the operator allows that."""
    is_allowed = settings.allow_busy_gpus
    who = find_foreign_load(gpus, stopping, wait_s=0.0 if is_allowed else _PATIENCE_S)
    if who and not is_allowed:
        raise DevicesBusy(settings.name, who)
    return [f"Another process computes on the GPUs, so that figures will vary: {who}."] if who else []


def find_foreign_load(
    gpus: Gpus,
    stopping: Callable[[float], bool],
    *,
    wait_s: float = _PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Return whose processes compute on the visible devices, "" for none.

    It waits a while for those that are about to leave: nothing of ours may run on the devices meanwhile. `stopping`
    waits for that many seconds, and is true when there is no point in waiting on. When NVML does not answer no process
    is found: that is another trouble, and `gpus.trouble` says so.
    """
    gpus.close()
    began_s = clock()
    while True:
        processes = gpus.list_processes()
        waited_s = clock() - began_s
        if processes == () or gpus.trouble:
            return ""
        if waited_s >= (wait_s if processes else _START_S) or stopping(_PAUSE_S):
            return _describe(processes or ())


def _describe(processes: Sequence[DeviceProcess]) -> str:
    return ", ".join(f"GPU {process.device}: {_describe_one(process)}" for process in processes)


def _describe_one(process: DeviceProcess) -> str:
    memory = f", {process.memory_bytes / 2**30:.1f} GiB" if process.memory_bytes else ""
    with suppress(psutil.Error, OSError):
        found = psutil.Process(process.pid)
        return f"{found.name()} (process {process.pid} of {found.username()}{memory})"
    # In a container NVML tells the host's numbers, which mean nothing here.
    return f"process {process.pid}, which is not visible from here{memory}"
