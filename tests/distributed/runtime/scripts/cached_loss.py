"""A loss over a large batch whose embeddings are computed in parts: forward and backward of each part run inside the
loss's own backward.

As in GradCache, and in sentence-transformers' cached losses: the first pass, for the values alone, keeps no graph.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = DataLoader(TensorDataset(torch.randn(4096, 64)), 32)
for _ in range(30):
    for (rows,) in loader:
        parts = rows.split(8)
        with torch.no_grad():
            values = torch.cat([model(part) for part in parts]).requires_grad_()
        loss = nn.functional.cross_entropy(values @ values.T, torch.arange(32))
        (gradients,) = torch.autograd.grad(loss, values)

        def compute_parts(scale: torch.Tensor, parts=parts, gradients=gradients) -> None:
            with torch.enable_grad():
                for part, gradient in zip(parts, gradients.split(8), strict=True):
                    (model(part) * gradient * scale).sum().backward()

        optimizer.zero_grad()
        loss = loss.detach().requires_grad_()
        loss.register_hook(compute_parts)
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
