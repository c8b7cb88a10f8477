"""A Lightning script; it counts its own samples per second."""

import os
import time

import lightning
import torch
from placement import DEVICE
from torch.utils.data import DataLoader, TensorDataset


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            *[m for _ in range(4) for m in (torch.nn.Linear(128, 128), torch.nn.ReLU())],
            torch.nn.Linear(128, 10),
        )

    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def validation_step(
        self, batch, index
    ):  # before training: it leaves DDP, not what is inside, in eval mode
        self.training_step(batch, index)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Stopwatch(lightning.Callback):
    def on_fit_start(self, trainer, module):
        self.file = open(os.path.join(os.environ["OUT"], f"count.{trainer.global_rank}"), "w")  # noqa: SIM115

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.file.write(f"{time.perf_counter()} {len(batch[0]) * trainer.world_size}\n")
        self.file.flush()


def main():
    data = TensorDataset(torch.randn(8000, 128), torch.randint(10, (8000,)))
    ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    devices = min(ranks, torch.cuda.device_count() or ranks)  # ranks that share a card are nodes of it
    trainer = lightning.Trainer(
        accelerator=DEVICE.type, devices=devices, num_nodes=ranks // devices, strategy="ddp", max_steps=400,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, callbacks=[Stopwatch()],
        default_root_dir=os.environ["OUT"], check_val_every_n_epoch=99,
    )  # fmt: skip
    trainer.fit(Net(), DataLoader(data, batch_size=16), DataLoader(data, batch_size=16))


if __name__ == "__main__":
    main()
