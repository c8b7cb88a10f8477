"""Where these scripts compute and communicate: CPUs and gloo, or the cards with FLEET_TEST_DEVICE=cuda.

NCCL on cards. Ranks that share one are ranks of different nodes to it: it refuses two of one node on one card.
"""

import os

import torch


def choose(wanted, cards, rank, ranks):
    """Return device and backend of a rank among so many on a node with so many cards."""
    if wanted != "cuda":
        return torch.device("cpu"), "gloo"
    if not cards:
        raise SystemExit("FLEET_TEST_DEVICE=cuda, and torch finds no card here.")
    if cards < ranks:
        os.environ["NCCL_HOSTID"] = "rank-" + os.environ["RANK"]
        os.environ["LOCAL_RANK"] = str(rank % cards)  # frameworks take the card of this number
    return torch.device("cuda", rank % cards), "nccl"


WANTED = os.environ.get("FLEET_TEST_DEVICE", "cpu")
DEVICE, BACKEND = choose(
    WANTED,
    torch.cuda.device_count() if WANTED == "cuda" else 0,
    int(os.environ.get("LOCAL_RANK", "0")),
    int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
)
if DEVICE.type == "cuda":
    torch.cuda.set_device(DEVICE)
    # Tests compare the bits of two launches.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True, warn_only=True)
