"""Hugging Face's Trainer on a small GPT-2 of random weights and made-up text; nothing is downloaded.

torchrun --nproc-per-node 2 trainer.py --output_dir out --use_cpu --save_strategy no --max_steps 200 --report_to none
"""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments


class Made(Dataset):
    """Sequences of 64 tokens, each made from its number."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 1000, (64,), generator=torch.Generator().manual_seed(number))
        return {"input_ids": tokens, "labels": tokens}


(asked,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=64, n_embd=128, n_layer=4, n_head=4))
Trainer(model=model, args=asked, train_dataset=Made()).train()
