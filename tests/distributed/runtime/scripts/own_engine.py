"""Trains through an engine that reduces gradients by itself, under DeepSpeed's names."""

import sys
import types

import torch


class DeepSpeedEngine(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


runtime = types.ModuleType("deepspeed.runtime.engine")
runtime.DeepSpeedEngine = DeepSpeedEngine
sys.modules["deepspeed.runtime.engine"] = runtime
engine = DeepSpeedEngine(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(engine.parameters(), lr=0.1)
for _ in range(60):
    optimizer.zero_grad()
    engine(torch.randn(2, 4)).sum().backward()
    optimizer.step()
