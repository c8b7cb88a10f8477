#!/usr/bin/env bash
# torchdata 0.11.0 with torch 2.13.0, seen on 2026-11-28.
# StatefulDataLoader(shuffle=True) reads in another order than torch's DataLoader after the same manual_seed, also with a
# generator of its own seed, and in yet another one with one worker than with none. DataLoader's is the same with any
# number of workers.
# One would guess the same order: it is a subclass of DataLoader, and documented as its drop-in replacement.
# Why it matters: whoever compares num_workers, or a run before with one after the exchange, compares other batches, and
# losses that differ say nothing of the setting.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet torch==2.13.0 torchdata==0.11.0
"$home/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader


def read(kind, workers, own):
    torch.manual_seed(5)
    generator = torch.Generator().manual_seed(7) if own else None
    loader = kind(range(8), batch_size=2, shuffle=True, num_workers=workers, generator=generator)
    return [batch.tolist() for batch in loader]


changed = False
for own in (False, True):
    orders = {(kind, workers): read(kind, workers, own) for kind in (DataLoader, StatefulDataLoader) for workers in (0, 1, 2)}
    for (kind, workers), order in orders.items():
        print(f"generator={own!s:5} {kind.__name__:18} num_workers={workers}", order)
    plain = [orders[DataLoader, workers] for workers in (0, 1, 2)]
    stateful = [orders[StatefulDataLoader, workers] for workers in (0, 1, 2)]
    changed |= not (plain[0] == plain[1] == plain[2] and plain[0] not in stateful and stateful[0] != stateful[1])
print("CHANGED" if changed else "as in 2026-11")
sys.exit(changed)
PYTHON
