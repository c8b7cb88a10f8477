"""Trains by Hugging Face Trainer with DeepSpeed's engine in ZeRO's stage 2."""

import os

import torch
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(100, 100) for _ in range(6)])

    def forward(self, x):
        return {"loss": (self.layers(x) - x).square().mean()}


settings = {
    "train_micro_batch_size_per_gpu": "auto",
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 25_000},
}
arguments = TrainingArguments(
    os.environ["OUT"], per_device_train_batch_size=4, max_steps=60, use_cpu=True, ddp_backend="gloo", report_to=[],
    save_strategy="no", logging_strategy="no", deepspeed=settings,
)  # fmt: skip
data = [{"x": torch.randn(100)} for _ in range(1000)]
Trainer(Model(), arguments, train_dataset=data).train()
torch.distributed.barrier()
torch.distributed.destroy_process_group()
