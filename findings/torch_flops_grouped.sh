#!/usr/bin/env bash
# torch 2.13.0 (CPU): torch.utils.flop_counter counts the backward of a grouped convolution as if it had no groups in one of
# its two products: a depthwise 3x3 convolution of 16 channels is 36,864 FLOPs forward, and 626,688 backward (17 times the
# forward, where 2 times is right). Without groups backward is 2 times forward.
# One would guess that backward is counted as truly as forward, which is right for any number of groups.
# It matters for models of depthwise convolutions (MobileNet, EfficientNet, ConvNeXt): with hundreds of channels the count of
# a training step is many times too large, and a utilization (MFU) computed from it with it; a gate on MFU compares nothing.
# 2026-11-28
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import sys

import torch
from torch.utils.flop_counter import FlopCounterMode

image = torch.randn(2, 16, 8, 8, requires_grad=True)


def count(run) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


ratios = []
for groups in (1, 4, 16):
    convolution = torch.nn.Conv2d(16, 16, 3, padding=1, groups=groups, bias=False)
    forward = count(lambda: convolution(image))
    backward = count(lambda: convolution(image).sum().backward()) - forward
    ratios.append(backward / forward)
    print(f"groups={groups}: forward {forward}, backward {backward} FLOPs, {ratios[-1]:g} times")
expected = ratios == [2, 5, 17]
print("as in 2026-11" if expected else "CHANGED")
sys.exit(not expected)
PY
