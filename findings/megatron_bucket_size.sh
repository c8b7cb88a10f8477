#!/usr/bin/env bash
# megatron-core 0.16.1 (torch 2.13.0): DistributedDataParallelConfig(bucket_size=1_000_000) makes one bucket of all gradients,
# and the caller's bucket_size becomes None, unless overlap_grad_reduce is on; no warning is given. With it on the buckets have
# a million numbers (4 MB in float32) and more, not a million bytes.
# One would guess that it cuts gradients as torch's bucket_cap_mb does, with and without overlap, in a unit of bytes: Megatron's
# --ddp-bucket-size says "Bucket size for data-parallel communication", and no more.
# It matters to whoever tunes bucket sizes: without --overlap-grad-reduce every value measures the same thing, and a value that
# was brought over from DistributedDataParallel means four times as much, or twice in 16 bits.
# The buffer is asked for on the CPU, in place of torch.cuda.current_device(): that is all that is changed. 2026-11-28
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet megatron-core==0.16.1 torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PY'
import sys

import torch
from torch import distributed, nn

torch.cuda.current_device = lambda: torch.device("cpu")
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)

from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.transformer import TransformerConfig

parallel_state.initialize_model_parallel()
config = TransformerConfig(num_layers=1, hidden_size=64, num_attention_heads=4)
seen = []
for overlap in (False, True):
    model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(8)))
    asked = DistributedDataParallelConfig(bucket_size=1_000_000, overlap_grad_reduce=overlap)
    built = DistributedDataParallel(config, asked, model)
    numbers = [bucket.grad_data.numel() for group in built.bucket_groups for bucket in group.buckets]
    seen.append((overlap, asked.bucket_size, numbers))
    print(f"overlap_grad_reduce={overlap}: bucket_size is {asked.bucket_size}, buckets of {numbers} float32")
sys.exit(seen != [(False, None, [2_097_152]), (True, 1_000_000, [1_048_576, 1_048_576])])
PY
