"""ResNet-50 on synthetic images: an ordinary DistributedDataParallel training script.

`torchrun --nproc-per-node 2 resnet50.py`; `--size full` is the network of He et al. (2015) on ImageNet's sizes.
"""

import argparse

import torch
from synthetic_data import Images
from torch import nn
from training import parse_arguments, train

SIZES = {
    "small": {"batch": 8, "image": 32, "classes": 10, "width": 16},
    "full": {"batch": 256, "image": 224, "classes": 1000, "width": 64},
}
STAGES = (3, 4, 6, 3)
EXPANSION = 4


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions beside a shortcut; the stride is in the 3×3 one."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.body = nn.Sequential(
            convolve(inputs, width, 1), nn.ReLU(inplace=True),
            convolve(width, width, 3, stride), nn.ReLU(inplace=True),
            convolve(width, outputs, 1),
        )  # fmt: skip
        # A block starts as its shortcut (Goyal et al., 2017): the first steps of a deep network are stable then.
        nn.init.zeros_(self.body[-1][1].weight)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else convolve(inputs, outputs, 1, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.body(images) + self.shortcut(images))


def convolve(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


def build_model(arguments: argparse.Namespace) -> nn.Module:
    layers: list[nn.Module] = [
        convolve(3, arguments.width, 7, 2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = arguments.width
    for stage, blocks in enumerate(STAGES):
        width = arguments.width * 2**stage
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, stride=2 if stage and not block else 1))
            inputs = width * EXPANSION
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, arguments.classes))


def build_optimizer(model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9, weight_decay=1e-4)


def compute_loss(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(images), labels)


def main() -> None:
    arguments = parse_arguments(__doc__, SIZES, learning_rate=0.02)
    train(
        arguments,
        lambda: build_model(arguments),
        lambda model: build_optimizer(model, arguments.learning_rate),
        Images(arguments.image, arguments.classes),
        compute_loss,
    )


if __name__ == "__main__":
    main()
