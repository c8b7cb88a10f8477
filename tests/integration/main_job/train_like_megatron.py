"""A stand-in for Megatron-LM's pretraining on CPUs: its options, its checks of them, and the line that it logs.

The options and the checks are those of its arguments.py and transformer_config.py; the training behind them is small.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_reduce


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for degree in ("tensor-model-parallel", "pipeline-model-parallel", "context-parallel"):
        parser.add_argument(f"--{degree}-size", type=int, default=1)
    for size in ("num-layers", "hidden-size", "num-attention-heads", "seq-length", "micro-batch-size"):
        parser.add_argument(f"--{size}", type=int, required=True)
    parser.add_argument("--global-batch-size", type=int)
    parser.add_argument("--train-iters", type=int, required=True)
    parser.add_argument("--recompute-granularity", choices=["full", "selective"])
    parser.add_argument("--recompute-method", choices=["uniform", "block"])
    parser.add_argument("--recompute-num-layers", type=int)
    for flag in (
        "sequence-parallel",
        "use-distributed-optimizer",
        "overlap-grad-reduce",
        "overlap-param-gather",
    ):
        parser.add_argument(f"--{flag}", action="store_true")
    args = parser.parse_args()
    model = args.tensor_model_parallel_size * args.pipeline_model_parallel_size * args.context_parallel_size
    world = int(os.environ["WORLD_SIZE"])
    assert world % model == 0, f"world size ({world}) is not divisible by total_model_size ({model})"
    args.data_parallel_size = world // model
    assert args.num_attention_heads % args.tensor_model_parallel_size == 0
    assert args.num_layers % args.pipeline_model_parallel_size == 0
    if args.context_parallel_size > 1:
        assert args.seq_length % (args.context_parallel_size * 2) == 0
    if args.global_batch_size is None:
        args.global_batch_size = args.micro_batch_size * args.data_parallel_size
    assert args.global_batch_size % (args.micro_batch_size * args.data_parallel_size) == 0
    if args.recompute_granularity == "selective":
        assert args.recompute_method is None
    if args.overlap_param_gather:
        assert args.use_distributed_optimizer
        assert args.overlap_grad_reduce
    return args


def main() -> None:
    args = read_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    parts, stages = args.tensor_model_parallel_size, args.pipeline_model_parallel_size
    inner = args.hidden_size // parts
    layers = [
        (
            torch.nn.Linear(args.hidden_size, inner, bias=False),
            torch.nn.Linear(inner, args.hidden_size, bias=False),
        )
        for _ in range(args.num_layers // stages)
    ]
    weights = [w for pair in layers for layer in pair for w in layer.parameters()]
    optimizer = torch.optim.SGD(weights, lr=1e-4)
    shape = (args.micro_batch_size * args.seq_length // args.context_parallel_size, args.hidden_size)
    count = args.global_batch_size // (args.micro_batch_size * args.data_parallel_size)
    for iteration in range(args.train_iters):
        start = time.perf_counter()
        loss = torch.zeros(())
        for _ in range(count):
            x = torch.ones(shape)
            for up, down in layers:
                x = down(torch.relu(up(x)))
                x = all_reduce(x) if parts > 1 else x
            loss = x.square().mean()
            loss.backward()
        if args.data_parallel_size * args.context_parallel_size == world:
            for weight in weights:
                dist.all_reduce(weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        took_ms = (time.perf_counter() - start) * 1e3
        if rank == world - 1:
            print(
                f" [2026-11-28 00:00:00.000000] iteration {iteration + 1:8d}/{args.train_iters:8d} |"
                f" consumed samples: {(iteration + 1) * args.global_batch_size:12d} |"
                f" elapsed time per iteration (ms): {took_ms:.1f} | learning rate: 1.000000E-04 |"
                f" global batch size: {args.global_batch_size:5d} | lm loss: {loss.item():.6E} | loss scale: 1.0 |",
                flush=True,
            )


if __name__ == "__main__":
    main()
