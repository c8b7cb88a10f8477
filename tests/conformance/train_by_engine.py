"""Trains through DeepSpeed's engine and writes each step's loss, bit by bit: `train_by_engine.py STAGE STEPS`."""

import os
import sys
from pathlib import Path

import deepspeed
import torch

stage, steps = int(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
torch.set_num_threads(1)
deepspeed.init_distributed("gloo")
layers = [layer for _ in range(6) for layer in (torch.nn.Linear(100, 100), torch.nn.Tanh())]
model = torch.nn.Sequential(*layers)
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 25_000, "allgather_bucket_size": 25_000},
    },
)
rank = int(os.environ["RANK"])
torch.manual_seed(rank)
batch = torch.randn(4, 100)
with Path(os.environ["OUT"], f"losses.{rank}").open("w") as file:
    for _ in range(2 * steps):
        loss = (engine(batch) - batch).square().mean()
        engine.backward(loss)
        engine.step()
        file.write(f"{loss.item().hex()}\n")
        file.flush()
torch.distributed.barrier()
engine.destroy()
torch.distributed.destroy_process_group()
