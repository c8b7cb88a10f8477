"""A wide-and-deep recommender with sparse embeddings: an ordinary DistributedDataParallel training script.

`torchrun --nproc-per-node 2 wide_and_deep.py`; the model of Cheng et al. (2016), `--size full` in the size of Criteo.
On CPUs its embeddings have sparse gradients; NCCL reduces none, so on GPUs they are dense.
"""

import argparse
from itertools import pairwise

import torch
from synthetic_data import Clicks
from torch import nn
from training import parse_arguments, train

SIZES = {
    "small": {"batch": 32, "fields": 8, "categories": 5000, "width": 16, "hidden": 64, "layers": 2},
    "full": {"batch": 4096, "fields": 26, "categories": 100_000, "width": 64, "hidden": 1024, "layers": 3},
}
NUMBERS = 13


class WideAndDeep(nn.Module):
    """A weight for every category beside a network over the categories' embeddings and the numbers."""

    def __init__(
        self, fields: int, categories: int, width: int, hidden: int, layers: int, sparse: bool
    ) -> None:
        super().__init__()
        self.wide = nn.Embedding(fields * categories, 1, sparse=sparse)
        self.embeddings = nn.Embedding(fields * categories, width, sparse=sparse)
        for embedding in (self.wide, self.embeddings):
            nn.init.normal_(embedding.weight, std=0.01)
        sizes = [fields * width + NUMBERS, *[hidden] * layers]
        self.deep = nn.Sequential(
            *(part for before, after in pairwise(sizes) for part in (nn.Linear(before, after), nn.ReLU())),
            nn.Linear(hidden, 1),
        )
        self.register_buffer("first_id", torch.arange(fields) * categories, persistent=False)

    def forward(self, ids: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        rows = ids + self.first_id
        deep = self.deep(torch.cat([self.embeddings(rows).flatten(1), numbers], dim=1))
        return (self.wide(rows).sum(dim=1) + deep).squeeze(1)


def build_model(arguments: argparse.Namespace) -> nn.Module:
    return WideAndDeep(
        arguments.fields,
        arguments.categories,
        arguments.width,
        arguments.hidden,
        arguments.layers,
        sparse=not torch.cuda.is_available(),
    )


def compute_loss(
    model: nn.Module, ids: torch.Tensor, numbers: torch.Tensor, clicked: torch.Tensor
) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(model(ids, numbers), clicked)


def main() -> None:
    arguments = parse_arguments(__doc__, SIZES, learning_rate=0.05)
    train(
        arguments,
        lambda: build_model(arguments),
        lambda model: torch.optim.Adagrad(model.parameters(), lr=arguments.learning_rate),
        Clicks(arguments.fields, arguments.categories, NUMBERS),
        compute_loss,
    )


if __name__ == "__main__":
    main()
