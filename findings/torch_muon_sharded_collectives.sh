#!/usr/bin/env bash
# torch 2.13.0 (2.14.1 the same), seen on 2026-11-28.
# One step of torch.optim.Muon on a model sharded by fully_shard sends each matrix many times: 15 all-gathers (three in
# each of the five Newton-Schulz iterations) and one all-reduce a matrix, one after the other; AdamW sends nothing.
# One would guess one all-gather a matrix, as in the distributed Muons that gather, orthogonalise and cut again, or that
# DTensors are refused.
# Why it matters: five layers make 80 collectives that no prefetch and no bucket covers, in a step whose gradients need
# five reductions; a tuner that only looks at those leaves the larger part of the communication out.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet torch==2.13.0
cat > "$home/train.py" <<'PYTHON'
import sys
from collections import Counter

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

LAYERS = 5
dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(LAYERS)))
for layer in net:
    fully_shard(layer)
fully_shard(net)
net(torch.randn(4, 32)).square().mean().backward()


def count(optimizer):
    with torch.autograd.profiler.profile() as profile:
        optimizer.step()
    return Counter(event.name for event in profile.function_events if event.name.startswith("c10d::"))


found = {kind.__name__: count(kind(net.parameters(), lr=0.01)) for kind in (torch.optim.Muon, torch.optim.AdamW)}
if dist.get_rank() == 0:
    for name, collectives in found.items():
        print(f"{name}: {dict(collectives)} for {LAYERS} matrices")
dist.barrier()
dist.destroy_process_group()
expected = {"c10d::allgather_into_tensor_coalesced_": 15 * LAYERS, "c10d::allreduce_": LAYERS}
sys.exit(not (found["Muon"] == expected and not found["AdamW"]))
PYTHON
OMP_NUM_THREADS=1 "$home/venv/bin/torchrun" --standalone --nproc-per-node 2 "$home/train.py" 2>/dev/null && echo "as in 2026-11" || { echo CHANGED; exit 1; }
