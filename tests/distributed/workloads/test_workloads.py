"""The built-in trainings: each learns on two ranks, repeats itself, and has its published size."""

import importlib
import os
import re
import sys
from pathlib import Path

import pytest
import torch

from advisor.cli.tuning.built_in import BUILT_IN, find_script
from tests.distributed.runtime.fake_agent import FORGE

PATIENCE_S = 280


def train(folder: Path, name: str, *words: str) -> list[float]:
    """Train on two ranks; return the losses of the log lines."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "OUT": str(folder)}
    code, log = FORGE.launch([str(find_script(name)), *words], environment, folder, 2, PATIENCE_S)
    assert code == 0, log[-4000:]
    return [float(loss) for loss in re.findall(r"^step \d+ loss (\S+) ", log, re.MULTILINE)]


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnet50", ["--steps", "30", "--workers", "1"]),
        ("vgg16", ["--steps", "150"]),
        ("encoder", ["--steps", "40", "--amp", "bf16"]),
        ("decoder", ["--steps", "40", "--amp", "fp16", "--width", "96", "--layers", "1"]),
        ("wide_and_deep", ["--steps", "40"]),
    ],
)
def test_loss_falls_on_two_ranks(name: str, words: list[str], tmp_path: Path) -> None:
    losses = train(tmp_path, name, *words, "--log-every", "10")
    assert len(losses) >= 3
    assert losses[-1] < 0.9 * losses[0], losses


@pytest.mark.distributed
def test_same_seed_gives_the_same_training(tmp_path: Path) -> None:
    size = ("--steps", "12", "--log-every", "4", "--width", "32", "--layers", "1", "--seed", "3")
    first, again = (train(tmp_path, "encoder", *size) for _ in range(2))
    assert len(set(first)) == 3
    assert first == again


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet50", 25_557_032),
        ("vgg16", 138_357_544),
        # BERT-base with its masked-language head, whose matrix is that of the token embeddings.
        ("encoder", 109_514_298),
        # GPT-2's 124,439,808 and a head of its own; its blocks are torch's.
        ("decoder", 124_439_808 + 50_257 * 768),
    ],
)
def test_full_size_is_that_of_the_published_network(
    name: str, parameters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(find_script(name).parent))
    monkeypatch.setattr(sys, "argv", [name, "--size", "full"])
    workload = importlib.import_module(name)
    arguments = importlib.import_module("training").parse_arguments("", workload.SIZES, 0.1)
    with torch.device("meta"):
        model = workload.build_model(arguments)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_every_listed_workload_is_there() -> None:
    assert all(find_script(name).is_file() for name in BUILT_IN)
