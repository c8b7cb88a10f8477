#!/usr/bin/env bash
# torch 2.13.0 (2.14.1 the same), seen on 2026-11-29.
# checkpoint(model, x, use_reentrant=False): when the backward computes `model` again, the forward pre-hooks of `model` and of
# its last layer run, and their forward hooks do not: the pre-hooks ran twice, the hooks once. All layers in between, and
# everything with use_reentrant=True, run both twice.
# One would guess that pre-hooks and hooks come in pairs, twice each. The recomputation ends by an exception as soon as the
# last saved tensor is there, which is inside of the last layer; set_checkpoint_early_stop(False) gives the pairs.
# Why it matters: timers, memory counters and stacks of scopes that open in a pre-hook and close in a hook stay open after
# every step, and what they tell of the last layer and of the whole is wrong.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet torch==2.13.0
"$home/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop


def count(reentrant, early):
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4), nn.GELU())
    counts = {name or "model": [0, 0] for name, _ in model.named_modules()}
    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda *_, seen=counts[name or "model"]: seen.__setitem__(0, seen[0] + 1))
        module.register_forward_hook(lambda *_, seen=counts[name or "model"]: seen.__setitem__(1, seen[1] + 1))
    with set_checkpoint_early_stop(early):
        checkpoint(model, torch.ones(2, 4, requires_grad=True), use_reentrant=reentrant).sum().backward()
    print(f"use_reentrant={reentrant!s:5} early_stop={early!s:5} [pre-hooks, hooks]", counts)
    return counts


pairs = {"model": [2, 2], "0": [2, 2], "1": [2, 2], "2": [2, 2], "3": [2, 2]}
early, late, reentrant = count(False, True), count(False, False), count(True, True)
changed = early != {**pairs, "model": [2, 1], "3": [2, 1]} or late != pairs or reentrant != pairs
print("CHANGED" if changed else "as in 2026-11")
sys.exit(changed)
PYTHON
