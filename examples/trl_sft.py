"""TRL's SFTTrainer on a small GPT-2 of random weights, a tokenizer that is made here, and made-up text.

torchrun --nproc-per-node 2 trl_sft.py --output_dir out --use_cpu --max_steps 200 --gradient_checkpointing true
"""

import random

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

words = [f"w{number}" for number in range(1000)]
table = {word: number for number, word in enumerate(["<pad>", "<end>", "<unknown>", *words])}
made = Tokenizer(models.WordLevel(table, unk_token="<unknown>"))
made.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=made, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>"
)
dice = random.Random(0)
rows = Dataset.from_dict({"text": [" ".join(dice.choices(words, k=63)) for _ in range(2_000)]})

(asked,) = HfArgumentParser(SFTConfig).parse_args_into_dataclasses()
torch.manual_seed(0)
torch.set_num_threads(1)
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=len(table),
        n_positions=128,
        n_embd=128,
        n_layer=6,
        n_head=4,
        pad_token_id=0,
        eos_token_id=1,
    )
)
SFTTrainer(model=model, args=asked, train_dataset=rows, processing_class=tokenizer).train()
