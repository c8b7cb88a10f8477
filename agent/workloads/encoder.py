"""A BERT-style encoder on masked synthetic sentences: an ordinary DistributedDataParallel training script.

`torchrun --nproc-per-node 2 encoder.py`; `--size full` is BERT-base (Devlin et al., 2018) with its masked-word head.
"""

import argparse

import torch
from synthetic_data import Sentences
from torch import nn
from training import parse_arguments, train

SIZES = {
    "small": {"batch": 8, "length": 32, "width": 128, "layers": 2, "heads": 4, "vocabulary": 4096},
    "full": {"batch": 64, "length": 512, "width": 768, "layers": 12, "heads": 12, "vocabulary": 30522},
}
SEGMENTS = 2
MASK = 0
"""The token that stands for a hidden one."""
EVERY = 7
"""One token in so many is hidden: BERT's 15 %."""


class Encoder(nn.Module):
    """Embeddings, self-attention blocks, and a head whose weights are the token embeddings."""

    def __init__(self, vocabulary: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.segments = nn.Embedding(SEGMENTS, width)
        for embedding in (self.tokens, self.positions, self.segments):
            nn.init.normal_(embedding.weight, std=0.02)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True
            )
            for _ in range(layers)
        )
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.head_bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        segments = places * SEGMENTS // tokens.shape[1]
        hidden = self.norm(self.tokens(tokens) + self.positions(places) + self.segments(segments))
        for block in self.blocks:
            hidden = block(hidden)
        return nn.functional.linear(self.head(hidden), self.tokens.weight, self.head_bias)


def build_model(arguments: argparse.Namespace) -> nn.Module:
    return Encoder(arguments.vocabulary, arguments.length, arguments.width, arguments.layers, arguments.heads)


def compute_loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    hidden = torch.zeros_like(tokens, dtype=torch.bool)
    hidden[:, EVERY // 2 :: EVERY] = True
    logits = model(tokens.masked_fill(hidden, MASK))
    return nn.functional.cross_entropy(logits[hidden], tokens[hidden])


def main() -> None:
    arguments = parse_arguments(__doc__, SIZES, learning_rate=1e-3)
    train(
        arguments,
        lambda: build_model(arguments),
        lambda model: torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate),
        Sentences(arguments.length, arguments.vocabulary),
        compute_loss,
    )


if __name__ == "__main__":
    main()
