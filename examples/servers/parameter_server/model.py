"""The recommender, its data and its variables: ids are looked up in a table, and layers judge what stands there."""

import argparse
from itertools import pairwise

import torch
from torch import nn

from .placement import Variable

_LIKED = 1.5
"""The sum of its ids' tastes from which a sample is a click: about half of them are, under the default skew."""


class Model:
    """The layers; their parameters and gradients lie in two long tensors, so that blocks of them are slices."""

    def __init__(self, options: argparse.Namespace) -> None:
        """With `--table dense` the table is the last part of those tensors; else it is not the model's."""
        torch.manual_seed(options.seed)
        widths = [options.fields * options.width, *map(int, options.hidden.split(",")), 1]
        parts = [part for before, after in pairwise(widths) for part in (nn.Linear(before, after), nn.ReLU())]
        self.layers = nn.Sequential(*parts[:-1])
        parameters = list(self.layers.named_parameters())
        self.variables = [
            Variable(name, value.numel(), value.numel() // len(value)) for name, value in parameters
        ]
        starts = [value.detach().flatten() for _, value in parameters]
        self.table: torch.Tensor | None = None
        if options.table == "dense":
            self.variables.append(Variable("table", options.rows * options.width, options.width))
            starts.append(build_table(options).flatten())
        self.values = torch.cat(starts)
        if options.resume:
            learnt = torch.load(options.resume)["values"]
            layers = sum(value.numel() for _, value in parameters)
            self.values[:layers] = learnt[:layers]
        self.gradient = torch.zeros_like(self.values)
        begin = 0
        for _, value in parameters:
            end = begin + value.numel()
            value.data = self.values[begin:end].view_as(value)
            value.grad = self.gradient[begin:end].view_as(value)
            begin = end
        if options.table == "dense":
            self.table = self.values[begin:].view(options.rows, options.width)
            self.table_gradient = self.gradient[begin:].view_as(self.table)

    def learn(
        self, rows: torch.Tensor, ids: torch.Tensor, places: torch.Tensor, labels: torch.Tensor
    ) -> tuple[float, torch.Tensor]:
        """Return a batch's loss and the gradients of its `rows`, which are those of `ids`; `places` leads to them.

        The gradients of everything else are in `gradient` afterwards.
        """
        self.gradient.zero_()
        rows.requires_grad_()
        of_samples = rows[places]
        # The first number of each row is its weight in the wide part.
        found = self.layers(of_samples.flatten(1)).squeeze(1) + of_samples[:, :, 0].sum(dim=1)
        loss = nn.functional.binary_cross_entropy_with_logits(found, labels)
        loss.backward()
        if self.table is not None:
            self.table_gradient[ids] = rows.grad
        return loss.item(), rows.grad


def build_table(options: argparse.Namespace) -> torch.Tensor:
    """Return the table before the first step, the same in every process."""
    if options.resume:
        return torch.load(options.resume)["table"]
    dice = torch.Generator().manual_seed(options.seed + 1)
    return torch.randn(options.rows, options.width, generator=dice) * 0.1


class Batches:
    """One trainer's batches: its part of the batch that all trainers together have in a step."""

    def __init__(self, options: argparse.Namespace, trainer: int) -> None:
        self._options, self._trainer = options, trainer
        self.first = torch.load(options.resume)["steps"] if options.resume else 0
        """Steps that a resumed training had made before."""

    def draw(self, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the different ids of a batch, where each sample's ids are among them, and the labels."""
        options = self._options
        dice = torch.Generator().manual_seed(options.seed * 1_000_003 + self.first + step)
        popularity = torch.rand(options.trainers * options.batch, options.fields, generator=dice)
        first = self._trainer * options.batch
        ids = (popularity[first : first + options.batch] ** options.skew * options.rows).long()
        tastes = torch.sin(ids * 12.9898 + 1).sum(dim=1)
        different, places = ids.unique(return_inverse=True)
        return different, places, (tastes > _LIKED).float()
