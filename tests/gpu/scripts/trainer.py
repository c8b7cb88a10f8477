"""A Hugging Face Trainer with torch_compile=True on a small BERT without downloads; it notes its own step times."""

import argparse
import os
import time

import torch
from placement import Notes, settle, share_card
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cuda")
parser.add_argument("--backend", default="inductor", help="torch.compile's")
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--steps", type=int, default=150)


class Texts(Dataset):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(5, 300, (64,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens[0] % 2}


class Stopwatch(TrainerCallback):
    """From the end of one step to the end of the next, the device's work included."""

    def __init__(self) -> None:
        self.notes, self.last = Notes(), None

    def on_step_end(self, args, *others, **named):
        settle(args.device)
        now = time.perf_counter()
        if self.last is not None:
            self.notes.write(step_s=now - self.last)
        self.last = now


def main() -> None:
    arguments = parser.parse_args()
    on_cpu = arguments.device == "cpu"
    if not on_cpu:
        rank, cards = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        os.environ["LOCAL_RANK"] = str(rank % cards)
        if cards < int(os.environ["LOCAL_WORLD_SIZE"]):
            share_card(rank)
    torch.manual_seed(0)
    width = arguments.width
    config = BertConfig(
        vocab_size=300, hidden_size=width, num_hidden_layers=4, num_attention_heads=8, intermediate_size=4 * width
    )  # fmt: skip
    settings = TrainingArguments(
        output_dir=os.path.join(os.environ["OUT"], "trainer"), max_steps=arguments.steps, report_to=[],
        per_device_train_batch_size=arguments.batch, use_cpu=on_cpu, save_strategy="no", logging_steps=10**6,
        disable_tqdm=True, torch_compile=True, torch_compile_backend=arguments.backend,
        ddp_backend="gloo" if on_cpu else "nccl", ddp_find_unused_parameters=False,
    )  # fmt: skip
    Trainer(
        BertForSequenceClassification(config), settings, train_dataset=Texts(), callbacks=[Stopwatch()]
    ).train()


if __name__ == "__main__":
    main()
