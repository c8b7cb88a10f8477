"""The built-in trainings: where their scripts are, and how one of them becomes a launch command."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from advisor.cli.exits import CommandFailed, Exit

BUILT_IN = ("resnet50", "vgg16", "encoder", "decoder", "wide_and_deep")
RANKS = 2
"""Ranks on each node where none are given: what a laptop and the smallest GPU server can hold."""


def launch_built_in(name: str, ranks: int | None, arguments: Sequence[str]) -> list[str]:
    """Return the launch command of a built-in training with `ranks` ranks on each node.

    Raises `CommandFailed` (invalid spec) when there is none of that name.
    """
    if name not in BUILT_IN:
        raise CommandFailed(
            Exit.INVALID_SPEC,
            f"There is no built-in workload {name!r}.",
            f"Choose one of {', '.join(BUILT_IN)}; a script of your own goes after `--`, with its launcher.",
        )
    return ["torchrun", "--nproc-per-node", str(ranks or RANKS), str(find_script(name)), *arguments]


def find_script(name: str) -> Path:
    """Return the script of a built-in training, as this installation holds it.

    The agent's package is found and not imported: it may need what this environment has not.
    """
    found = importlib.util.find_spec("agent")
    if found is None or found.origin is None:
        raise CommandFailed(
            Exit.INTERNAL,
            "The built-in workloads are not installed: the package `agent` is missing.",
            "Install it: pip install 'fleet-advisor[agent]'.",
        )
    return Path(found.origin).parent / "workloads" / f"{name}.py"
