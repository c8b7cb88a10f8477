"""What the example trainings share: their options, and one ordinary DistributedDataParallel loop over a DataLoader."""

import argparse
import os
import time
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

_AMP_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def parse_arguments(
    description: str, sizes: Mapping[str, Mapping[str, int]], learning_rate: float
) -> argparse.Namespace:
    """Return the options of the command line.

    `sizes` holds, for `small` and `full`, the value of every option that makes the model or its batch larger; each can
    also be given by itself.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--size", choices=list(sizes), default="small", help="sizes to start from (default: %(default)s)"
    )
    for name in sizes["small"]:
        choices = ", ".join(f"{size}: {values[name]}" for size, values in sizes.items())
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=choices)
    parser.add_argument("--steps", type=int, default=100_000, help="optimizer steps (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=learning_rate, help="default: %(default)s")
    parser.add_argument(
        "--amp", choices=["off", *_AMP_TYPES], default="off", help="mixed precision (default: off)"
    )
    parser.add_argument(
        "--workers", type=int, default=0, help="processes that read data (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument(
        "--log-every", type=int, default=50, help="steps between log lines (default: %(default)s)"
    )
    parser.set_defaults(**sizes[parser.parse_known_args()[0].size])
    return parser.parse_args()


def train(
    arguments: argparse.Namespace,
    build_model: Callable[[], nn.Module],
    build_optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    data: Dataset,
    compute_loss: Callable[..., torch.Tensor],
) -> None:
    """Train on GPUs where there are any, else on CPUs over gloo; `torchrun` says with how many ranks.

    On GPUs over NCCL; over gloo where ranks share one, which NCCL refuses.

    `compute_loss(model, *batch)` returns the mean loss of one batch. The same seed gives the same training.
    """
    use_cuda = torch.cuda.is_available()
    cards = torch.cuda.device_count() if use_cuda else 0
    dist.init_process_group("nccl" if cards >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")) else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % cards) if use_cuda else torch.device("cpu")
    if use_cuda:
        torch.cuda.set_device(device)

    torch.manual_seed(arguments.seed)
    model = DistributedDataParallel(build_model().to(device), device_ids=[device.index] if use_cuda else None)
    optimizer = build_optimizer(model)
    sampler = DistributedSampler(data, shuffle=True, seed=arguments.seed)
    loader = DataLoader(
        data,
        batch_size=arguments.batch,
        sampler=sampler,
        num_workers=arguments.workers,
        persistent_workers=arguments.workers > 0,
        pin_memory=use_cuda,
        drop_last=True,
    )
    amp_type = _AMP_TYPES.get(arguments.amp)
    scaler = torch.amp.GradScaler(device.type, enabled=arguments.amp == "fp16")

    step, epoch, since, losses = 0, 0, time.perf_counter(), torch.zeros((), device=device)
    while step < arguments.steps:
        sampler.set_epoch(epoch)
        for batch in loader:
            inputs = [part.to(device, non_blocking=True) for part in batch]
            with torch.autocast(device.type, dtype=amp_type, enabled=amp_type is not None):
                loss = compute_loss(model, *inputs)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            step += 1
            losses += loss.detach()
            if step % arguments.log_every == 0 and dist.get_rank() == 0:
                rate = (
                    arguments.log_every
                    * arguments.batch
                    * dist.get_world_size()
                    / (time.perf_counter() - since)
                )
                print(
                    f"step {step} loss {losses.item() / arguments.log_every:.4f} {rate:.1f} samples/s",
                    flush=True,
                )
                since = time.perf_counter()
                losses.zero_()
            if step >= arguments.steps:
                break
        epoch += 1
    # Gloo sometimes aborts a rank that leaves while another one still reduces.
    dist.barrier()
    dist.destroy_process_group()
