"""`advisor run`: a real training under an advised strategy; the node's side does it."""

import os
import sys

import typer

from advisor.local.agents import training_environment
from advisor.local.process import PYTHON


def run(context: typer.Context) -> None:
    """Train for real under an advised strategy: --strategy strategy.json -- torchrun … train.py."""
    sys.stdout.flush()
    words = [*PYTHON, "-m", "agent.production", *context.args]
    os.execve(words[0], words, training_environment(os.environ))  # noqa: S606 - our own Python, never a shell
