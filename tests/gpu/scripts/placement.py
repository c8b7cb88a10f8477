"""Where a rank of a check computes and what it communicates over; what it sees goes into a file of its own."""

import json
import os

import torch
import torch.distributed as dist


def join(device: str) -> torch.device:
    """Join the process group: over NCCL on cards, over gloo on CPUs."""
    if device == "cpu":
        dist.init_process_group("gloo")
        return torch.device("cpu")
    cards, rank = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"])
    place = torch.device("cuda", rank % cards)
    torch.cuda.set_device(place)
    if cards < int(os.environ["LOCAL_WORLD_SIZE"]):
        share_card(rank)
    dist.init_process_group("nccl")
    return place


def share_card(rank: int) -> None:
    """Let NCCL take this rank for one of another node: it refuses two ranks of one node on one card.

    They talk over sockets then, as nodes do.
    """
    os.environ["NCCL_HOSTID"] = f"rank-{rank}"


def leave() -> None:
    """Leave the process group."""
    dist.barrier()  # gloo sometimes aborts a rank that leaves while another one still reduces
    dist.destroy_process_group()


def settle(device: torch.device) -> None:
    """Wait until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Notes:
    """What this rank saw: JSON lines in `$OUT/notes.<rank>`."""

    def __init__(self) -> None:
        rank = os.environ.get("RANK", "0")
        self._file = open(os.path.join(os.environ["OUT"], f"notes.{rank}"), "a")  # noqa: SIM115 - for its whole life

    def write(self, **seen: object) -> None:
        """Add one line."""
        self._file.write(json.dumps(seen) + "\n")
        self._file.flush()
