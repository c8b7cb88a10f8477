"""A Lightning module that starts its own ranks, as a user writes it."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    """A small convolutional network."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 64, 256), nn.ReLU(), nn.Linear(256, 10),
        )  # fmt: skip

    def training_step(self, batch, batch_idx):  # noqa: ARG002 - Lightning gives it
        """Return the loss of a batch."""
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        """Return Adam with weight decay."""
        return torch.optim.AdamW(self.parameters(), 1e-3)


if __name__ == "__main__":
    lightning.seed_everything(1)
    data = TensorDataset(torch.randn(2048, 3, 32, 32), torch.randint(0, 10, (2048,)))
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=200, enable_progress_bar=False,
        enable_checkpointing=False, logger=False,
    )  # fmt: skip
    trainer.fit(Classifier(), DataLoader(data, batch_size=16, shuffle=True))
