"""A GPT-style decoder on synthetic sentences: an ordinary DistributedDataParallel training script.

`torchrun --nproc-per-node 2 decoder.py`; `--size full` has the sizes of GPT-2 (Radford et al., 2019), the head untied.
"""

import argparse

import torch
from synthetic_data import Sentences
from torch import nn
from training import parse_arguments, train

SIZES = {
    "small": {"batch": 8, "length": 32, "width": 192, "layers": 4, "heads": 4, "vocabulary": 4096},
    "full": {"batch": 16, "length": 1024, "width": 768, "layers": 12, "heads": 12, "vocabulary": 50257},
}


class Decoder(nn.Module):
    """Token and position embeddings, causal self-attention blocks, a language-model head."""

    def __init__(self, vocabulary: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask, is_causal=True)
        return self.head(self.norm(hidden))


def build_model(arguments: argparse.Namespace) -> nn.Module:
    return Decoder(arguments.vocabulary, arguments.length, arguments.width, arguments.layers, arguments.heads)


def compute_loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    arguments = parse_arguments(__doc__, SIZES, learning_rate=3e-4)
    train(
        arguments,
        lambda: build_model(arguments),
        lambda model: torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate),
        Sentences(arguments.length + 1, arguments.vocabulary),
        compute_loss,
    )


if __name__ == "__main__":
    main()
