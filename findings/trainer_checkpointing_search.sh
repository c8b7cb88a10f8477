#!/usr/bin/env bash
# transformers 5.24.0 with accelerate 1.15.0 and torch 2.13.0, TrainingArguments without ddp_find_unused_parameters.
# Seen: with gradient_checkpointing its DistributedDataParallel has find_unused_parameters False; without it, True.
# One would guess: recomputing activations changes nothing of how gradients are reduced (DDP's own default is False).
# Why it matters: who switches recomputation off (TRL has it on) gets a search of each step's graph and an exchange of
# what it found besides, so that a race of the two settings measures both; ddp_find_unused_parameters=False takes it out.
# 2026-11-28
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 accelerate==1.15.0
cat > "$folder/train.py" <<'PYTHON'
import sys

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Made(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, number):
        tokens = torch.full((8,), number)
        return {"input_ids": tokens, "labels": tokens}


class Look(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 1 and args.process_index == 0:
            wrapped = trainer.model_wrapped
            print("checkpointing", args.gradient_checkpointing, type(wrapped).__name__, wrapped.find_unused_parameters)


model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=1, n_head=1))
asked = TrainingArguments(
    output_dir=sys.argv[2], use_cpu=True, max_steps=2, save_strategy="no", report_to="none",
    gradient_checkpointing=sys.argv[1] == "on",
)
trainer = Trainer(model=model, args=asked, train_dataset=Made(), callbacks=[Look()])
trainer.train()
PYTHON
for checkpointing in on off; do
    "$folder/venv/bin/torchrun" --nproc-per-node 2 "$folder/train.py" "$checkpointing" "$folder/out" 2> "$folder/errors" |
        grep '^checkpointing' | tee -a "$folder/seen" || { cat "$folder/errors"; exit 1; }
done
grep -q '^checkpointing True DistributedDataParallel False$' "$folder/seen" &&
    grep -q '^checkpointing False DistributedDataParallel True$' "$folder/seen" && echo "as in 2026-11"
