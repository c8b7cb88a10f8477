"""Words of a command that puts `advisor tune --here` on an engine's nodes: its options, and the launch command."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Annotated, Any

import typer

from advisor.cli.exits import CommandFailed, Exit

FORWARDING: dict[str, Any] = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""How such a command is parsed."""
WORDS = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TUNE'S OPTIONS] -- COMMAND…", help="As of `advisor tune`; the command of one node."),
]  # fmt: skip


def split_words(words: list[str], before: str) -> tuple[list[str], list[str]]:
    """Return the options of `advisor tune`, and the launch command.

    A job that goes on by its id needs no launch command. The parser has taken the `--` away where no option with a
    value stands before it. `before`: what stands before them in an example. Raises `CommandFailed`.
    """
    if any(word.partition("=")[0] in {"--continue", "--resume"} for word in words) and "--" not in words:
        return words, []
    ends = len(list(takewhile(lambda word: word.startswith("-"), words)))
    at = words.index("--") if ends and "--" in words else ends
    options, command = words[:at], words[at:]
    command = command[1:] if command[:1] == ["--"] else command
    if not command or command[0].startswith("-"):
        raise CommandFailed(
            Exit.USAGE,
            "You gave no launch command.",
            f"For example: advisor {before} -- torchrun --nproc-per-node 8 train.py",
        )
    return options, command


def join_words(options: Sequence[str], command: Sequence[str]) -> list[str]:
    """Return what `split_words` took apart."""
    return [*options, "--", *command] if command else [*options]
