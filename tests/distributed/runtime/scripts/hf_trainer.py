"""A Hugging Face Trainer script on a random tiny BERT; it counts its own samples per second."""

import os
import time

import torch
from placement import BACKEND, DEVICE
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Texts(Dataset):
    def __len__(self):
        return 8000

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(5, 300, (24,), generator=generator)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens[0] % 2}


class Stopwatch(TrainerCallback):
    """Writes the clock and the samples consumed at every optimizer step."""

    def __init__(self):
        self.file = open(os.path.join(os.environ["OUT"], f"count.{os.environ['RANK']}"), "w")  # noqa: SIM115

    def on_step_end(self, args, state, control, **kwargs):
        samples = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
        self.file.write(f"{time.perf_counter()} {samples}\n")
        self.file.flush()


def main():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=300, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
    )
    arguments = TrainingArguments(
        output_dir=os.path.join(os.environ["OUT"], "hf"), max_steps=300, per_device_train_batch_size=8,
        use_cpu=DEVICE.type == "cpu", ddp_backend=BACKEND, gradient_accumulation_steps=2, report_to=[],
        save_strategy="no", logging_steps=1000,
        disable_tqdm=True,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    Trainer(model, arguments, train_dataset=Texts(), callbacks=[Stopwatch()]).train()


if __name__ == "__main__":
    main()
