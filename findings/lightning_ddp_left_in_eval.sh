#!/usr/bin/env bash
# lightning 2.6.6 with torch 2.13.0, seen on 2026-11-28.
# From the sanity check on, and after every validation, DistributedDataParallel is in eval mode while training_step runs:
# trainer.model.training is False, that of the LightningModule inside is True. `on_validation_model_eval` sets the wrapper
# to eval mode, and afterwards the modes of trainer.lightning_module alone are brought back. Without a validation: True.
# One would guess that both are in training mode again, as model.train() would have it.
# Why it matters: a hook on the wrapper that asks `.training`, as profilers and tuners do, takes all training for
# evaluation.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet torch==2.13.0 lightning==2.6.6
cat > "$home/x.py" <<'PYTHON'
import logging
import sys
import warnings

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        print(type(self.trainer.model).__name__, self.trainer.model.training, "inside", self.training)
        return self.layer(batch[0]).mean()

    def validation_step(self, batch, index):
        self.layer(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


data = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=4)
trainer = lightning.Trainer(
    accelerator="cpu", devices=1, strategy="ddp", max_steps=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Net(), data, data if sys.argv[1] == "validated" else None)
PYTHON
cd "$home"
with=$("$home/venv/bin/python" x.py validated 2>/dev/null | grep inside)
without=$("$home/venv/bin/python" x.py alone 2>/dev/null | grep inside)
printf 'validated: %s\nalone:     %s\n' "$with" "$without"
[ "$with" = "DistributedDataParallel False inside True" ] && [ "$without" = "DistributedDataParallel True inside True" ] \
  && echo "as in 2026-11" || { echo CHANGED; exit 1; }
