"""Several ranks train what nothing wraps: by-hand, in a pipeline, or with copies of the parameters in the optimizer and
a list in the place of the model's buffers(), as Megatron has both."""

import sys

import torch
import torch.distributed as dist
from torch import nn

way = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
trained = list(model.parameters())
if way == "copies":
    model.buffers = []
    trained = [parameter.detach().clone().requires_grad_() for parameter in trained]
optimizer = torch.optim.SGD(trained, lr=0.01)
for _ in range(60):
    for _ in range(2):
        if way != "pipeline":
            model(torch.randn(4, 8)).square().mean().backward()
        elif rank == 0:
            output = model(torch.randn(4, 8))
            dist.send(output.detach(), 1)
            gradient = torch.empty_like(output)
            dist.recv(gradient, 1)
            output.backward(gradient)
        else:
            received = torch.empty(4, 8)
            dist.recv(received, 0)
            model(received.requires_grad_()).square().mean().backward()
            dist.send(received.grad, 0)
    if way != "pipeline":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    for copy, parameter in zip(trained, model.parameters(), strict=True):
        copy.grad = parameter.grad
    optimizer.step()
    with torch.no_grad():
        for copy, parameter in zip(trained, model.parameters(), strict=True):
            parameter.copy_(copy)
            parameter.grad = None
dist.destroy_process_group()
