#!/usr/bin/env bash
# torch 2.13.0 (CPU): torch.utils.flop_counter counts 0 FLOPs, without a warning, for nn.LSTM, for
# scaled_dot_product_attention on CPUs (its flash kernel is not in the table; forward and backward) and, under eval() and
# no_grad(), for a whole TransformerEncoderLayer and MultiheadAttention (their fast path is one operator). nn.GRU and nn.RNN
# of the same sizes are counted, and so is the encoder layer in train().
# One would guess that matrix products inside of standard modules are counted; the page speaks of operators, and names none
# that is missing.
# It matters to whoever compares FLOPs per second of settings on CPUs (dry runs, gloo, CI): a model with LSTMs or attention
# seems to compute less than it does, and evaluation nothing at all, so that utilization falls where it does not.
# 2026-11-28
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import sys

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

WIDTH = 16
x = torch.randn(4, 8, WIDTH)


def count(run) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


counted = {
    kind.__name__: count(lambda: kind(WIDTH, WIDTH, batch_first=True)(x)[0].sum().backward())
    for kind in (nn.LSTM, nn.GRU, nn.RNN)
}
heads = torch.randn(2, 4, 8, WIDTH, requires_grad=True)
counted["attention on CPUs"] = count(lambda: scaled_dot_product_attention(heads, heads, heads).sum().backward())
layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=0.0, batch_first=True)
counted["encoder layer, train()"] = count(lambda: layer(x))
with torch.no_grad():
    counted["encoder layer, eval()"] = count(lambda: layer.eval()(x))
for what, flops in counted.items():
    print(f"{what}: {flops} FLOPs")
expected = {what for what, flops in counted.items() if not flops}
expected = expected == {"LSTM", "attention on CPUs", "encoder layer, eval()"}
print("as in 2026-11" if expected else "CHANGED")
sys.exit(not expected)
PY
