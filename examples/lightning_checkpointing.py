"""Lightning on a small transformer that computes its activations again in the backward pass, though memory is there.

torchrun --nproc-per-node 2 lightning_checkpointing.py --steps 200
"""

import argparse

import lightning
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

VOCABULARY, WIDTH, LAYERS, LENGTH, BATCH = 500, 128, 6, 32, 8

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=-1, help="-1: without an end")
asked = parser.parse_args()


class Tokens(Dataset):
    """Made-up text."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> torch.Tensor:
        made = torch.Generator().manual_seed(number)
        return torch.randint(0, VOCABULARY, (LENGTH + 1,), generator=made)


class Model(lightning.LightningModule):
    """Each layer is a checkpoint: memory is saved for a second forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def lose(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of the next tokens of one batch, (BATCH, LENGTH + 1)."""
        hidden = self.embedding(tokens[:, :-1])
        for layer in self.layers:
            hidden = checkpoint(layer, hidden, use_reentrant=False)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        return self.lose(batch)

    def validation_step(self, batch: torch.Tensor) -> None:
        """Log the loss."""
        self.log("val_loss", self.lose(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


lightning.seed_everything(0, verbose=False)
torch.set_num_threads(1)
trainer = lightning.Trainer(
    accelerator="cpu", strategy="ddp", devices=2, max_steps=asked.steps, max_epochs=-1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(Model(), DataLoader(Tokens(100_000), BATCH), DataLoader(Tokens(64), BATCH))
