"""Trains the same six layers by one framework under an exported file, and prints what that framework did.

`train_with_framework.py trainer|accelerate|lightning|deepspeed [FILE]`; without a file, as the framework does it.
"""

import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(os.environ.get("STEPS", "6"))
REPLICAS = []
SEEN = {"forwards": 0, "dtypes": set(), "workers": None, "steps": 0}


def remember_replicas():
    """Keep every DistributedDataParallel that is built; frameworks hand the bare model back at the end."""
    real = DistributedDataParallel.__init__

    def build(self, *args, **kwargs):
        real(self, *args, **kwargs)
        REPLICAS.append(self)

    DistributedDataParallel.__init__ = build


def make_model():
    torch.manual_seed(7)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(300, 300), nn.ReLU())))
    model[0].register_forward_hook(watch_forward)
    return model


def watch_forward(module, _, output):
    SEEN["forwards"] += module.training
    SEEN["dtypes"].add(str(output.dtype).removeprefix("torch."))


def make_data():
    return TensorDataset(torch.randn(400, 300, generator=torch.Generator().manual_seed(3)))


def load_arguments(path):
    if path is None:
        return {}
    spec = importlib.util.spec_from_file_location("exported", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.strategy_arguments()


def train_by_trainer(path):
    from transformers import Trainer, TrainingArguments

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = make_model()

        def forward(self, x):
            return {"loss": (self.layers(x) - x).float().square().mean()}

    data = [{"x": row} for (row,) in make_data()]
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), max_steps=STEPS, per_device_train_batch_size=4, use_cpu=True, report_to=[],
        save_strategy="no", disable_tqdm=True, logging_steps=1000, **load_arguments(path),
    )  # fmt: skip
    trainer = Trainer(Net(), arguments, train_dataset=data)
    real = trainer.get_train_dataloader

    def get_train_dataloader():
        loader = real()
        SEEN["workers"] = [loader.num_workers, loader.prefetch_factor]
        return loader

    trainer.get_train_dataloader = get_train_dataloader
    trainer.train()
    SEEN["steps"] = trainer.state.global_step
    fused = trainer.optimizer.param_groups[0].get("fused")
    return {"fused": bool(fused)}


def train_by_accelerate(path):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, **load_arguments(path))
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(make_data(), batch_size=4))
    for (batch,) in loader:
        with accelerator.accumulate(model):
            loss = (model(batch) - batch).float().square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        SEEN["steps"] += accelerator.sync_gradients
        if SEEN["steps"] == STEPS:
            break
    return {}


def train_by_lightning(path):
    import lightning

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = make_model()

        def training_step(self, batch, _):
            return (self.layers(batch[0]) - batch[0]).float().square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)

    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, max_steps=STEPS, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, default_root_dir=tempfile.mkdtemp(),
        **{"strategy": "ddp", **load_arguments(path)},
    )  # fmt: skip
    trainer.fit(Net(), DataLoader(make_data(), batch_size=4))
    SEEN["steps"] = trainer.global_step
    return {"accumulate": trainer.accumulate_grad_batches}


def train_by_deepspeed(path):
    import deepspeed
    from deepspeed import comm

    deepspeed.init_distributed("gloo")
    config = json.loads(Path(path).read_text()) if path else {}
    zero = {"stage": 1, **config.pop("zero_optimization", {})}
    reduced = []
    real = comm.comm.all_reduce

    def all_reduce(tensor, *args, **kwargs):
        reduced.append([tensor.numel(), str(tensor.dtype).removeprefix("torch.")])
        return real(tensor, *args, **kwargs)

    comm.comm.all_reduce = comm.all_reduce = deepspeed.comm.all_reduce = all_reduce
    model = make_model()
    engine, _, _, _ = deepspeed.initialize(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        config={"train_micro_batch_size_per_gpu": 4, "zero_allow_untested_optimizer": True,
                "zero_optimization": zero, **config},
    )  # fmt: skip
    del reduced[:]
    loader = DataLoader(make_data(), batch_size=4)
    for (batch,) in loader:
        engine.backward((engine(batch).float() - batch).square().mean())
        engine.step()
        if engine.global_steps == STEPS:
            break
    SEEN["steps"] = engine.global_steps
    return {
        "reduced": [entry for entry in reduced if entry[0] > 1],
        "stage": engine.zero_optimization_stage(),
    }


def main():
    name, path = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    by_name = {
        "trainer": train_by_trainer, "accelerate": train_by_accelerate, "lightning": train_by_lightning,
        "deepspeed": train_by_deepspeed,
    }  # fmt: skip
    remember_replicas()
    more = by_name[name](path)
    if dist.get_rank() == 0:
        log = REPLICAS[-1]._get_ddp_logging_data() if REPLICAS else {}
        sizes = log.get("rebuilt_bucket_sizes") or log.get("bucket_sizes", "")
        report = {
            "buckets": [int(size) for size in sizes.split(",")] if sizes else [],
            "hook": log.get("comm_hook", ""),
            "threads": torch.get_num_threads(),
            "forwards_per_step": SEEN["forwards"] / SEEN["steps"],
            "dtypes": sorted(SEEN["dtypes"]),
            "workers": SEEN["workers"],
            **more,
        }
        sys.stdout.write(f"REPORT {json.dumps(report)}\n")
        sys.stdout.flush()
    dist.barrier()
    os._exit(0)  # gloo sometimes aborts a rank at its end


if __name__ == "__main__":
    main()
