"""Synthetic data that can be learned: images, sentences and clicks, the same for the same index on every machine."""

import torch
from torch import nn
from torch.utils.data import Dataset

_ITEMS = 100_000
_PATTERN = 8
_NOISE = 0.5
_WORDS = 257
"""Words that occur at all: few enough that each is met often, whatever the vocabulary."""


class Images(Dataset):
    """Pairs of an image (3 × size × size) and its class: each class has a coarse pattern of its own, under noise."""

    def __init__(self, size: int, classes: int) -> None:
        self.size, self.classes = size, classes
        self.patterns = torch.randn(
            classes, 3, _PATTERN, _PATTERN, generator=torch.Generator().manual_seed(0)
        )

    def __len__(self) -> int:
        return _ITEMS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        label = index % self.classes
        pattern = nn.functional.interpolate(self.patterns[label, None], size=self.size)[0]
        return pattern + _NOISE * torch.randn(pattern.shape, generator=generator), label


class Sentences(Dataset):
    """One tensor of `length` tokens each: every token decides the next one, all but one time in ten."""

    def __init__(self, length: int, vocabulary: int) -> None:
        self.length, self.words = length, min(vocabulary, _WORDS)

    def __len__(self) -> int:
        return _ITEMS

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(self.words, (self.length,), generator=generator)
        follows = torch.rand(self.length, generator=generator) < 0.9
        words = tokens.tolist()
        for place, obeys in enumerate(follows[1:].tolist(), start=1):
            if obeys:
                words[place] = (words[place - 1] * 31 + 7) % self.words
        return (torch.tensor(words),)


class Clicks(Dataset):
    """Triples of category ids (fields), numbers and whether there was a click, which both of them decide.

    A few ids of each field are met most of the time, as in real logs.
    """

    def __init__(self, fields: int, categories: int, numbers: int) -> None:
        self.fields, self.categories, self.numbers = fields, categories, numbers

    def __len__(self) -> int:
        return _ITEMS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        popularity = torch.rand(self.fields, generator=generator) ** 6
        ids = (popularity * self.categories).long()
        numbers = torch.randn(self.numbers, generator=generator)
        taste = torch.sin(ids * 12.9898 + torch.arange(self.fields) * 78.233).sum()
        return ids, numbers, (taste + numbers.sum() > 0).float()
