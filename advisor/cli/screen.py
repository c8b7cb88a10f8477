"""Where a command writes: results on stdout, progress and errors on stderr, JSON where it was asked for."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from advisor.cli.exits import CommandFailed
from advisor.protocol.plain_text import clean_text, escape_controls

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console, RenderableType

_FORCING = {"FORCE_COLOR", "TTY_COMPATIBLE"}
"""Variables by which a stream may count as a terminal that is none."""
_PLAIN_WIDTH = 100
"""Columns of a result that is piped or written to a batch job's log."""


class Screen:
    """The two streams of a command, and what its options `--json`, `--verbose` and `--quiet` say.

    What draws them loads at the first word.
    """

    def __init__(self) -> None:
        self.json = False
        self.verbose = False
        self.quiet = False
        """Only results and errors."""

    @cached_property
    def out(self) -> "Console":
        """For results."""
        return _open_console(to_stderr=False)

    @cached_property
    def err(self) -> "Console":
        """For progress and errors."""
        return _open_console(to_stderr=True)

    @property
    def is_live(self) -> bool:
        """Whether a line may be redrawn in place: on a terminal that can, and not for programs."""
        on_terminal = self.err.is_terminal and not self.err.is_dumb_terminal
        return on_terminal and not self.json and not self.quiet

    @property
    def is_piped(self) -> bool:
        """Whether another program reads the results."""
        if not sys.stdout.isatty() and not _FORCING & os.environ.keys():
            return True
        return not self.out.is_terminal  # what draws decides, and takes its time to load

    def tell(self, sentence: str) -> None:
        """Say what is being done."""
        if self.quiet:
            return
        from rich.text import Text

        self.err.print(Text(sentence, style="dim"), soft_wrap=True)

    def warn(self, sentence: str) -> None:
        """Say that something is not as it should be, and goes on."""
        if self.quiet:
            return
        from rich.text import Text

        self.err.print(Text(f"Note: {sentence}", style="yellow"), soft_wrap=True)

    def show(self, result: "RenderableType") -> None:
        """Print a result for people."""
        # A command that is longer than the terminal is wide is left whole: the terminal breaks it, a copy does not.
        self.out.print(result, crop=False)

    def print_text(self, text: str) -> None:
        """Print a result as it stands: a file's content, a line for a program."""
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.flush()

    def print_list(self, line: str) -> None:
        """Print a line of a list for another program, or of a log, without what a terminal would obey."""
        self.print_text(clean_text(line))

    def print_json(self, result: "BaseModel | Sequence[BaseModel] | dict[str, object]") -> None:
        """Print a result for programs."""
        self.print_text(escape_controls(json.dumps(_plain(result), indent=2, ensure_ascii=False)))

    def print_line(self, result: "BaseModel") -> None:
        """Print one line of newline-delimited JSON."""
        self.print_text(escape_controls(result.model_dump_json()))

    def explain(self, failure: CommandFailed) -> None:
        """Say what went wrong and what to do."""
        from rich.text import Text

        if self.json:
            body = {
                "code": failure.exit_code.name.lower(),
                "detail": failure.what,
                "hint": failure.hint,
                "details": failure.details,
            }
            sys.stderr.write(f"{escape_controls(json.dumps(body, ensure_ascii=False))}\n")
            return
        self.err.print(Text.assemble(("Error: ", "bold red"), failure.what), soft_wrap=True)
        if failure.details:
            for line in failure.details.splitlines():
                self.err.print(Text(f"  | {line}", style="dim"), soft_wrap=True)
        if failure.hint:
            self.err.print(Text.assemble(("What to do: ", "bold"), failure.hint), soft_wrap=True)


def _open_console(to_stderr: bool) -> "Console":
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

    class CleanConsole(Console):
        """What is printed comes from jobs, scripts and servers: only rich's own words are obeyed by the terminal."""

        def render(
            self, renderable: "RenderableType", options: ConsoleOptions | None = None
        ) -> "Iterable[Segment]":
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=clean_text(segment.text))

    stream = sys.stderr if to_stderr else sys.stdout
    return CleanConsole(
        highlight=False, markup=False, emoji=False, stderr=to_stderr, width=_width(stream.isatty())
    )


def _width(on_terminal: bool) -> int | None:
    """None lets the terminal, or the variable COLUMNS, decide."""
    return None if on_terminal or "COLUMNS" in os.environ else _PLAIN_WIDTH


def _plain(result: object) -> object:
    if (dump := getattr(result, "model_dump", None)) is not None:
        return dump(mode="json")
    if isinstance(result, dict):
        return {key: _plain(value) for key, value in result.items()}
    if isinstance(result, list | tuple):
        return [_plain(item) for item in result]
    return result
