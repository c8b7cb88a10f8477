#!/usr/bin/env bash
# accelerate 1.15.0 with torch 2.13.0, seen on 2026-11-29.
# find_executable_batch_size, which transformers' auto_find_batch_size uses, takes nine tenths of the batch after each
# out-of-memory error, cut to an integer: from 128 it tries 115, 103, 92, 82, 73, 65, 58, 52, 46, 41, 36, 32, and trains with
# the first of them that fits.
# One would guess that it halves: 64, 32.
# Why it matters: where a quarter of the batch fits, the training is started thirteen times instead of three, each until it
# runs out of memory; and it may go on with 115 or 103 samples, which no accumulation brings back to a batch of 128.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet torch==2.13.0 accelerate==1.15.0
"$home/venv/bin/python" -W ignore - <<'PYTHON'
import sys

from accelerate.utils import find_executable_batch_size

tried = []


@find_executable_batch_size(starting_batch_size=128)
def train(batch_size):
    tried.append(batch_size)
    if batch_size > 32:
        raise RuntimeError("CUDA out of memory.")


train()
print("tried", tried)
changed = tried != [128, 115, 103, 92, 82, 73, 65, 58, 52, 46, 41, 36, 32]
print("CHANGED" if changed else "as in 2026-11")
sys.exit(changed)
PYTHON
