"""`advisor run` and `advisor diagnose`: a real training under an advised strategy, and where one's time goes."""

import os
import sys

import typer

from advisor.local.agents import AGENT_COMMAND, training_environment
from advisor.local.process import PYTHON


def run(context: typer.Context) -> None:
    """Train for real under an advised strategy: --strategy strategy.json -- torchrun … train.py."""
    sys.stdout.flush()
    words = [*PYTHON, "-m", "agent.production", *context.args]
    # The token is for reports of --watch: the next program takes it out of the training's environment.
    tokens = {
        name: os.environ[name] for name in ("ADVISOR_TOKEN", "ADVISOR_TOKEN_FILE") if name in os.environ
    }
    environment = {**training_environment(os.environ), **tokens}
    os.execve(words[0], words, environment)  # noqa: S606 - our own Python, never a shell


def diagnose(context: typer.Context) -> None:
    """Say where a training's time goes, in under a minute, without a server: -- torchrun … train.py."""
    sys.stdout.flush()
    words = [*AGENT_COMMAND, "diagnose", *context.args]
    os.execve(words[0], words, training_environment(os.environ))  # noqa: S606 - our own Python, never a shell
