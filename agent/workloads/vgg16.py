"""VGG-16 on synthetic images: an ordinary DistributedDataParallel training script.

`torchrun --nproc-per-node 2 vgg16.py`; `--size full` is configuration D of Simonyan and Zisserman (2014) on ImageNet's
sizes. Most of its parameters are in three linear layers: much to communicate for what it computes.
"""

import argparse

import torch
from synthetic_data import Images
from torch import nn
from training import parse_arguments, train

SIZES = {
    "small": {"batch": 8, "image": 32, "classes": 10, "width": 8, "hidden": 256},
    "full": {"batch": 128, "image": 224, "classes": 1000, "width": 64, "hidden": 4096},
}
STAGES = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))
"""Width, as a multiple of the first one's, and number of convolutions before each pooling."""
POOLED = 7


def build_model(arguments: argparse.Namespace) -> nn.Module:
    layers: list[nn.Module] = []
    inputs = 3
    for multiple, convolutions in STAGES:
        for _ in range(convolutions):
            layers += [nn.Conv2d(inputs, multiple * arguments.width, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = multiple * arguments.width
        layers.append(nn.MaxPool2d(2))
    hidden = arguments.hidden
    layers += [
        nn.AdaptiveAvgPool2d(POOLED), nn.Flatten(),
        nn.Linear(inputs * POOLED * POOLED, hidden), nn.ReLU(inplace=True), nn.Dropout(),
        nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(),
        nn.Linear(hidden, arguments.classes),
    ]  # fmt: skip
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            # Without batch norm, the default initialisation lets the signal die on its way through 16 layers.
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def build_optimizer(model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9, weight_decay=5e-4)


def compute_loss(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(images), labels)


def main() -> None:
    arguments = parse_arguments(__doc__, SIZES, learning_rate=0.003)
    train(
        arguments,
        lambda: build_model(arguments),
        lambda model: build_optimizer(model, arguments.learning_rate),
        Images(arguments.image, arguments.classes),
        compute_loss,
    )


if __name__ == "__main__":
    main()
