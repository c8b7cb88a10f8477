"""Peak memory of one arm, and what is free: the allocator's on CUDA, the process's resident set on CPU."""

from __future__ import annotations

import os
import resource
from typing import List, Optional

import torch


def reset_peak(device: torch.device) -> None:
    """Starts the statistic anew, so that an arm is not charged for the one before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        return


def read_peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def read_share(device: torch.device) -> float:
    """The most of a GPU's memory that this rank's allocator has held; 0 on CPUs."""
    if device.type != "cuda":
        return 0.0
    _, total = torch.cuda.mem_get_info(device)
    return float(torch.cuda.max_memory_reserved(device) / total)


def count_free_bytes(device: torch.device) -> int:
    """What could still be allocated: on the GPU, or in host memory by all processes together; 0 where unknown."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + cached)
    return count_free_host_bytes()


def count_room_at_peak(device: torch.device, ranks: int = 0) -> int:
    """Bytes that stayed free on the GPU when the steps since the last reset held most, or this rank's part of the free
    host memory; 0 where unknown.

    `ranks` share the host; 0: as many as the launcher says, which a script that starts its own does not.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return max(
            1, int(free + torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device))
        )
    return count_free_host_bytes() // (ranks or max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def count_free_host_bytes(root: str = "") -> int:
    """Of the machine, or of the tightest control group that this process is in; 0 where unknown.

    `root` stands before every path read.
    """
    rooms = [_read_available(root + "/proc/meminfo"), *_list_group_rooms(root)]
    return max(0, min((room for room in rooms if room is not None), default=0))


def _read_available(path: str) -> Optional[int]:
    try:
        with open(path) as file:
            return next(
                (int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:")), None
            )
    except OSError:
        return None


def _list_group_rooms(root: str) -> List[int]:
    """Of each control group with a limit, this process's and those around it, of version 2 and of version 1."""
    try:
        with open(root + "/proc/self/cgroup") as file:
            entries = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    rooms = []
    for _, controllers, path in entries:
        if not controllers:
            names, mount = ("memory.max", "memory.current"), root + "/sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            mount = root + "/sys/fs/cgroup/memory"
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts) + 1):
            folder = os.path.join(mount, *parts[:depth])
            limit, used = (_read_number(os.path.join(folder, name)) for name in names)
            if limit is not None and used is not None:
                rooms.append(limit - used)
    return rooms


def _read_number(path: str) -> Optional[int]:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):  # "max" is no limit
        return None
