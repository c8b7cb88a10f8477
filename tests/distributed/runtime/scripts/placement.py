"""Where these scripts compute and communicate: CPUs and gloo, or the cards with FLEET_TEST_DEVICE=cuda.

NCCL where every rank has a card of its own; ranks that share one use gloo, which takes tensors of a card too.
"""

import os

import torch


def choose(wanted, cards, rank, ranks):
    """Return device and backend of a rank among so many on a node with so many cards."""
    if wanted != "cuda":
        return torch.device("cpu"), "gloo"
    if not cards:
        raise SystemExit("FLEET_TEST_DEVICE=cuda, and torch finds no card here.")
    return torch.device("cuda", rank % cards), "nccl" if cards >= ranks else "gloo"


WANTED = os.environ.get("FLEET_TEST_DEVICE", "cpu")
DEVICE, BACKEND = choose(
    WANTED,
    torch.cuda.device_count() if WANTED == "cuda" else 0,
    int(os.environ.get("LOCAL_RANK", "0")),
    int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
)
if DEVICE.type == "cuda":
    torch.cuda.set_device(DEVICE)
