"""A generator and a critic: two DistributedDataParallel models, two optimizers, one batch per step, checkpointing."""

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from placement import BACKEND, DEVICE
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


class Critic(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 32), torch.nn.Linear(32, 1)

    def forward(self, x):
        return self.b(torch.utils.checkpoint.checkpoint(self.a, x, use_reentrant=False))


dist.init_process_group(BACKEND)
generator = DDP(
    torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).to(DEVICE)
)
critic = DDP(Critic().to(DEVICE))
first, second = torch.optim.Adam(critic.parameters()), torch.optim.Adam(generator.parameters())
for (x,) in DataLoader(TensorDataset(torch.randn(8 * 300, 8)), 8, num_workers=2):
    x = x.to(DEVICE)
    with torch.no_grad():
        fake = generator(torch.randn(8, 4, device=DEVICE))
    first.zero_grad()
    # The critic's bare module runs before the wrapped one: a graph exists when the boundary is passed.
    (critic.module(fake).mean() - critic(x).mean()).backward()
    first.step()
    second.zero_grad()
    (-critic.module(generator(torch.randn(8, 4, device=DEVICE))).mean()).backward()
    second.step()
dist.barrier()  # gloo sometimes aborts a rank that leaves while another one still reduces
dist.destroy_process_group()
