"""Where a rank of a check computes and what it communicates over; what it sees goes into a file of its own."""

import json
import os

import torch
import torch.distributed as dist


def join(device: str) -> torch.device:
    """Join the process group: NCCL where every rank has a card of its own, gloo where ranks share one, and on CPUs."""
    if device == "cpu":
        dist.init_process_group("gloo")
        return torch.device("cpu")
    cards, rank = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"])
    place = torch.device("cuda", rank % cards)
    torch.cuda.set_device(place)
    dist.init_process_group("nccl" if cards >= int(os.environ["LOCAL_WORLD_SIZE"]) else "gloo")
    return place


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
