"""One allreduce over NCCL as the host and as the card time it, and a communicator that is made, used and destroyed."""

import argparse
import time

import torch
import torch.distributed as dist
from placement import Notes, join

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cuda", choices=["cuda"])
parser.add_argument("--mebibytes", type=int, default=256)
REPEATS = 20


def main() -> None:
    arguments = parser.parse_args()
    device, notes = join(arguments.device), Notes()
    tensor = torch.ones(arguments.mebibytes * 2**18, device=device)
    for _ in range(5):
        dist.all_reduce(tensor)
    for _ in range(REPEATS):
        torch.cuda.synchronize(device)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        host_s = time.perf_counter() - began
        end.record()
        torch.cuda.synchronize(device)
        notes.write(host_s=host_s, event_s=start.elapsed_time(end) / 1e3)
    torch.cuda.empty_cache()
    before, _ = torch.cuda.mem_get_info(device)
    options = dist.ProcessGroupNCCL.Options()
    is_configured = hasattr(options, "config") and hasattr(options.config, "min_ctas")
    if is_configured:
        # Both: NCCL compares them before it fills in what is missing, so that the fewest alone are refused.
        options.config.min_ctas, options.config.max_ctas = 2, 64
    group = dist.new_group(list(range(dist.get_world_size())), backend="nccl", pg_options=options)
    ones = torch.ones(1024, device=device)
    dist.all_reduce(ones, group=group)
    torch.cuda.synchronize(device)
    is_right = bool((ones == dist.get_world_size()).all())
    with_group, _ = torch.cuda.mem_get_info(device)
    dist.destroy_process_group(group)
    torch.cuda.synchronize(device)
    after, _ = torch.cuda.mem_get_info(device)
    notes.write(
        is_right=is_right,
        is_configured=is_configured,
        group_bytes=before - with_group,
        kept_bytes=before - after,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
