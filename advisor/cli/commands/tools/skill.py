"""`advisor skill install`: what a coding agent has to know to measure, as a folder that agents read (SKILL.md)."""

from pathlib import Path
from typing import Annotated

import typer

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.options import screen_of
from advisor.cli.screen import Screen

NAME = "fleet-advisor"
FILE = "SKILL.md"


def build_app() -> typer.Typer:
    """Write the skill for coding agents (SKILL.md) where they look for it."""
    app = typer.Typer(no_args_is_help=True)
    app.command("install", no_args_is_help=False)(install)
    app.callback()(_hold_group)
    return app


def _hold_group() -> None:
    """With a callback it stays a group of one command."""


def install(
    context: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", show_default=".claude/skills where .claude is there, else .agents/skills",
                       help="The agent's folder of skills; the skill is a folder in it."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace one that was changed, or is of another version.")
    ] = False,
) -> None:  # fmt: skip
    """Write the skill fleet-advisor, by which a coding agent knows when and how to measure, and what not to conclude.

    advisor skill install ~/.agents/skills
    """
    screen: Screen = screen_of(context)
    text = read_skill()
    root = folder or Path(".claude" if Path(".claude").is_dir() else ".agents", "skills")
    file = root.expanduser() / NAME / FILE
    if file.exists() and file.read_text() != text and not force:
        raise CommandFailed(
            Exit.USAGE,
            f"{file} is there and says something else: it was changed, or is of another version.",
            "Keep it, or replace it with --force.",
        )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    except OSError as error:
        raise CommandFailed(
            Exit.USAGE, f"{file} cannot be written: {error.strerror}.", "Name another folder."
        ) from error
    screen.print_text(str(file))


def read_skill() -> str:
    """Return the skill as it was installed with this program, or lies beside its source."""
    package = Path(__file__).parents[3]
    places = [package / "skills", package.parent / "skills"]
    return next(place for place in places if place.is_dir()).joinpath(NAME, FILE).read_text()
