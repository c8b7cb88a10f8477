"""A recommender with one sparse embedding table and two optimizers, as a user writes it.

One table, because torch itself (2.13, gloo) corrupts its heap now and then where several sparse gradients are reduced
side by side, with and without an advisor.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Recommender(nn.Module):
    """Four bags of items and thirteen numbers."""

    def __init__(self):
        super().__init__()
        self.items = nn.EmbeddingBag(80_000, 32, mode="sum", sparse=True)
        self.head = nn.Sequential(
            nn.Linear(128 + 13, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def forward(self, numbers, items):
        """Return a score for each sample."""
        found = self.items(items.flatten(0, 1)).view(len(numbers), -1)
        return self.head(torch.cat([found, numbers], 1)).squeeze(1)


def main():
    """Train on random clicks."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Recommender()
    ddp = DistributedDataParallel(model)
    optimizers = [
        torch.optim.SparseAdam(model.items.parameters(), 1e-3),
        torch.optim.Adam(model.head.parameters(), 1e-3),
    ]
    dice = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(1_000_000):
        numbers = torch.randn(256, 13, generator=dice)
        items = torch.randint(0, 80_000, (256, 4, 5), generator=dice)
        clicks = torch.rand(256, generator=dice).round()
        loss = nn.functional.binary_cross_entropy_with_logits(ddp(numbers, items), clicks)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()


if __name__ == "__main__":
    main()
