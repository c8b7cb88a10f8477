"""An ordinary DDP training script that knows nothing of the advisor; it prints what DDP itself logged."""

import argparse
import gc
import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--positional", action="store_true", help="give DDP its arguments by position")
    parser.add_argument("--steps", type=int, default=6)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(300, 300), nn.ReLU())))
    given = (None, None, 0, True, True, None, 25) if arguments.positional else ()
    ddp = DistributedDataParallel(model, *given)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    agreed = []
    for _ in range(arguments.steps):
        batch = torch.randn(4, 300, generator=generator)
        loss = (ddp(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        agreed.append(do_ranks_agree(ddp, world))
    log = ddp._get_ddp_logging_data()
    if rank == 0:
        report = {
            "buckets": [int(size) for size in log["rebuilt_bucket_sizes"].split(",")],
            "hook": log.get("comm_hook", ""),
            "collects_after": gc.get_threshold()[0],
            "threads": torch.get_num_threads(),
            "agreed": agreed,
            "sum": sum(parameter.double().sum().item() for parameter in ddp.parameters()),
            "argv": sys.argv[1:],
            "folder": sys.path[0],
            "advisors": sorted({"advisor", "agent"} & sys.modules.keys()),
        }
        sys.stdout.write(f"REPORT {json.dumps(report)}\n")
    dist.barrier()  # gloo sometimes aborts a rank that leaves while another one still reduces
    dist.destroy_process_group()


def do_ranks_agree(ddp: nn.Module, world: int) -> bool:
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in ddp.parameters()])
    everyone = [torch.empty_like(flat) for _ in range(world)]
    dist.all_gather(everyone, flat)
    return all(torch.equal(everyone[0], other) for other in everyone[1:])


if __name__ == "__main__":
    main()
