"""The two launches of a race: two commands, or one command in two environments."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from advisor.cli.exits import CommandFailed, Exit
from advisor.protocol.training.command_options import split_variables

_TORCHRUN = ("-m", "torch.distributed.run")


@dataclass(frozen=True)
class Side:
    """What is launched, and where."""

    words: tuple[str, ...]
    """Variables in front, as a shell takes them."""
    folder: Path

    @classmethod
    def read(cls, command: str, folder: Path) -> "Side":
        """Return the side that a command typed as one word is. Raises `CommandFailed` for none."""
        try:
            words = tuple(shlex.split(command))
        except ValueError as error:
            raise CommandFailed(
                Exit.USAGE, f"The command {command!r} cannot be read: {error}.", "Close its quotes."
            ) from error
        if not split_variables(words)[1]:
            raise CommandFailed(
                Exit.USAGE, f"The command {command!r} starts nothing.", "Give a launcher and a script."
            )
        return cls(words, folder)

    @property
    def command(self) -> str:
        """As a shell takes it."""
        return shlex.join(self.words)

    def reach_from(self, folder: Path) -> str:
        """Return the command that starts this side from another folder."""
        if folder == self.folder:
            return self.command
        variables, rest = split_variables(self.words)
        # Variables that come behind `env -C` would count as well, but ours are read in front of the command.
        given = [f"{name}={value}" for name, value in variables.items()]
        return shlex.join([*given, "env", "-C", str(self.folder), *rest])


def vary(
    side: Side, python: str | None = None, variables: Sequence[str] = (), worktree: Path | None = None
) -> Side:
    """Return a side with another interpreter, further variables, or in another worktree of the same repository.

    Raises `CommandFailed` naming the option that cannot be.
    """
    given, rest = split_variables(side.words)
    for typed in variables:
        name, equals, value = typed.partition("=")
        if not equals or not name.isidentifier():
            raise CommandFailed(
                Exit.USAGE, f"--env-b {typed}: that is no variable.", "Write it as --env-b OMP_NUM_THREADS=2."
            )
        given[name] = value
    if python is not None:
        rest = _start_with(python, rest)
    if worktree is not None:
        if not worktree.is_dir():
            raise CommandFailed(
                Exit.USAGE,
                f"--worktree-b {worktree}: there is no such folder.",
                f"Make it: git worktree add {worktree}",
            )
        side = replace(side, folder=worktree.resolve())
    return replace(side, words=(*(f"{name}={value}" for name, value in given.items()), *rest))


def _start_with(python: str, command: Sequence[str]) -> list[str]:
    """The same launch by another Python: torchrun is a module of it."""
    launcher, rest = Path(command[0]).name, list(command[1:])
    if launcher == "torchrun":
        return [python, *_TORCHRUN, *rest]
    if launcher.startswith("python"):
        return [python, *rest]
    raise CommandFailed(
        Exit.USAGE,
        f"--python-b {python}: {command[0]} is neither torchrun nor python, so that its interpreter is its own affair.",
        "Give both commands in full: advisor race 'COMMAND A' 'COMMAND B'.",
    )
