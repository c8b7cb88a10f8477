#!/usr/bin/env bash
# torch 2.13.0 (2.14.1 the same), seen on 2026-11-28.
# DistributedDataParallel(bucket_cap_mb_list=[1, 7]) makes buckets of 1, 7 and 7 MiB in the order in which gradients become
# ready; with find_unused_parameters=True the sizes are dealt from the other end and never again: the bucket of 1 MiB is
# the last one to become ready, for the whole training. The same holds for the usual first bucket of 1 MiB.
# One would guess that the list means the order of reduction in both cases, as the documentation of the argument says nothing.
# Why it matters: a small first bucket is there to start communication early; with the search it shortens the tail
# instead, and a size that was found best without the search is another setting with it (Hugging Face's Trainer searches).
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet torch==2.13.0
cat > "$home/train.py" <<'PYTHON'
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")


def list_sizes(**given):
    net = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(15)))  # 1 MiB each
    ddp = DistributedDataParallel(net, **given)
    sizes = []

    def reduce(_, bucket):
        sizes.append(bucket.buffer().numel() * 4 >> 20)
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    ddp.register_comm_hook(None, reduce)
    for _ in range(4):
        del sizes[:]
        ddp(torch.randn(2, 512)).sum().backward()
    return sizes


found = {
    f"{name} find_unused_parameters={searches}": list_sizes(find_unused_parameters=searches, **given)
    for name, given in (("[1, 7]", {"bucket_cap_mb_list": [1, 7]}), ("default of 25 MiB", {}))
    for searches in (False, True)
}
if dist.get_rank() == 0:
    for name, sizes in found.items():
        print(name, sizes)
dist.barrier()
dist.destroy_process_group()
sys.exit(list(found.values()) != [[1, 7, 7], [7, 7, 1], [1, 14], [14, 1]])
PYTHON
OMP_NUM_THREADS=1 "$home/venv/bin/torchrun" --standalone --nproc-per-node 2 "$home/train.py" 2>/dev/null && echo "as in 2026-11" || { echo CHANGED; exit 1; }
