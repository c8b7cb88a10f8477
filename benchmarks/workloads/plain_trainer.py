"""A GPT-2 of Hugging Face on made-up text, trained by its Trainer as its examples have it. It knows no advisor.

Two ranks on one card are two nodes for NCCL, which refuses them otherwise.
"""

import os

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

cards = torch.cuda.device_count()
if 0 < cards < int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
    os.environ["NCCL_HOSTID"] = os.environ["RANK"]
    os.environ["LOCAL_RANK"] = str(int(os.environ["LOCAL_RANK"]) % cards)


class Text(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        start = torch.randint(0, 50, (1,), generator=torch.Generator().manual_seed(i))
        tokens = (start + torch.arange(256)) % 50
        return {"input_ids": tokens, "labels": tokens}


model = GPT2LMHeadModel(GPT2Config(vocab_size=50_257, n_layer=6, n_embd=768, n_head=12, n_positions=256))
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=16,
    max_steps=1_000_000,
    report_to=[],
    save_strategy="no",
    logging_steps=500,
    disable_tqdm=True,
)
Trainer(model, arguments, train_dataset=Text()).train()
