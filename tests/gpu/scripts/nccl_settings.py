"""Communicators made with settings of their own: the blocks of their kernels, what they take, and what they keep."""

import argparse
import json
import os
import tempfile

import torch
import torch.distributed as dist
from placement import Notes, join, leave, settle
from torch.profiler import ProfilerActivity, profile

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cuda", choices=["cuda"])
parser.add_argument("--mebibytes", type=int, default=64)
ASKED: tuple[dict[str, int], ...] = (
    {},
    {"max_ctas": 2},
    {"min_ctas": 16, "max_ctas": 64},  # NCCL refuses the fewest alone
    {"max_ctas": 2, "cga_cluster_size": 2},
)
REPEATS = 5
ACTIVITIES = (ProfilerActivity.CPU, ProfilerActivity.CUDA)


def main() -> None:
    arguments = parser.parse_args()
    device, notes = join(arguments.device), Notes()
    tensor = torch.ones(arguments.mebibytes * 2**18, device=device)
    # With its first use the profiler takes memory of the card for good, which is no communicator's.
    with profile(activities=ACTIVITIES):
        dist.all_reduce(tensor)
        settle(device)
    for asked in ASKED:
        try_settings(asked, tensor, device, notes)
    leave()


def try_settings(asked: dict[str, int], tensor: torch.Tensor, device: torch.device, notes: Notes) -> None:
    settle(device)
    torch.cuda.empty_cache()
    before, _ = torch.cuda.mem_get_info(device)
    options = dist.ProcessGroupNCCL.Options()
    for field, value in asked.items():
        setattr(options.config, field, value)
    group = dist.new_group(list(range(dist.get_world_size())), backend="nccl", pg_options=options)
    tensor.fill_(1.0)
    dist.all_reduce(tensor, group=group)
    settle(device)
    is_right = bool((tensor == dist.get_world_size()).all())
    with profile(activities=ACTIVITIES) as recorded:
        for _ in range(REPEATS):
            dist.all_reduce(tensor, group=group)
        settle(device)
    during, _ = torch.cuda.mem_get_info(device)
    dist.destroy_process_group(group)
    settle(device)
    torch.cuda.empty_cache()
    after, _ = torch.cuda.mem_get_info(device)
    notes.write(
        asked=asked,
        blocks=read_blocks(recorded),
        is_right=is_right,
        taken_bytes=before - during,
        kept_bytes=before - after,
    )


def read_blocks(recorded: profile) -> list[int]:
    """Thread blocks of each of NCCL's kernels, from the trace."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        recorded.export_chrome_trace(path)
        with open(path) as file:
            events = json.load(file)["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel" and "nccl" in event["name"].lower()]
    return [int(event["args"]["grid"][0]) for event in kernels]


if __name__ == "__main__":
    main()
