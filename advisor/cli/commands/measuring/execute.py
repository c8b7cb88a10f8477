"""`advisor exec`: what an agent would start for a command on this machine; the agent itself says it."""

import os
import sys

import typer

from advisor.local.agents import AGENT_COMMAND, training_environment


def execute(context: typer.Context) -> None:
    """Show exactly what an agent would start for a command; with --run, start it once and measure it."""
    sys.stdout.flush()
    words = [*AGENT_COMMAND, "exec", *context.args]
    os.execve(words[0], words, training_environment(os.environ))  # noqa: S606 - our own Python, never a shell
