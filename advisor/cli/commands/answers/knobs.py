"""`advisor knobs` and `advisor version`: what this release knows, without a server."""

import platform
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from advisor import __version__
from advisor.answers.wording import EFFECT_WORDS, spell_value
from advisor.cli.completions import complete_knob
from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.options import JsonOption, screen_of
from advisor.protocol.kinds import Effect, Switch
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import Knob
from advisor.protocol.knobs.paddle import describe_in_paddle
from advisor.protocol.measured.messages import PROTOCOL_MAJOR


def list_knobs(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            help="Tell everything about this one.", show_default=False, autocompletion=complete_knob
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that are exported but never varied.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the knobs: what can be tuned, and what each may change besides the speed; or tell all about one."""
    screen = screen_of(context)
    if name is not None:
        knob = find_knob(name)
        if as_json:
            screen.print_json(_as_json(knob))
        else:
            screen.show(_describe(knob))
        return
    shown = [knob for knob in CATALOGUE.values() if everything or not knob.carried]
    if as_json:
        screen.print_json({"items": [_as_json(knob) for knob in shown]})
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    table.add_column("knob", no_wrap=True)
    table.add_column("default", overflow="fold", max_width=16)
    table.add_column("meaning", overflow="fold", ratio=1)
    for knob in shown:
        meaning = Text(knob.meaning)
        if knob.carried:
            meaning.append(f" {knob.realised}", style="dim")
        if knob.effect is not Effect.EXACT:
            meaning.append(f" ({EFFECT_WORDS[knob.effect]})", style="yellow")
        table.add_row(Text(knob.name, style="bold"), spell_value(knob.name, knob.default) or "–", meaning)
    screen.show(table)
    screen.tell("All about one of them: advisor knobs NAME")


def version(context: typer.Context, as_json: JsonOption = False) -> None:
    """Print the versions of this program, its protocol and its Python."""
    screen = screen_of(context)
    if as_json:
        screen.print_json(
            {"version": __version__, "protocol": PROTOCOL_MAJOR, "python": platform.python_version()}
        )
    else:
        screen.print_text(
            f"fleet-advisor {__version__} (protocol {PROTOCOL_MAJOR}, Python {platform.python_version()})"
        )


def find_knob(name: str) -> Knob:
    """Return the knob of that name, in whatever case; raises `CommandFailed` with those that may be meant."""
    by_small = {knob.name.casefold(): knob for knob in CATALOGUE.values()}
    if (knob := by_small.get(name.casefold())) is None:
        near = CATALOGUE.find_nearest(name)
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        raise CommandFailed(
            Exit.NOT_FOUND, f"There is no knob {name}.", f"{hint}`advisor knobs --all` lists all of them."
        )
    return knob


def _describe(knob: Knob) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    unit = f" {knob.unit}" if knob.unit else ""
    switched = {
        Switch.HOT: "between two steps of a running training",
        Switch.SLOW: "between two steps, after work that takes about as long as a launch",
        Switch.COLD: "in a launch of its own",
    }
    lines: dict[str, str | Text] = {
        "knob": Text(knob.name, style="bold"),
        "meaning": knob.meaning,
        "default": f"{spell_value(knob.name, knob.default) or '–'}",
        "values": f"{_range(knob)}{unit}".strip() or "any",
        "acts on": str(knob.part),
        "besides the speed": EFFECT_WORDS[knob.effect],
        "takes effect": "never here: it is exported, not varied" if knob.carried else switched[knob.switch],
        "in PyTorch": knob.realised,
        "needs": knob.needs,
        "Paddle's field": f"{knob.paddle_field}: {describe_in_paddle(knob.name)}"
        if knob.paddle_field
        else "none",
        "variable": knob.launch_variable or "",
    }
    for title, text in lines.items():
        if text:
            grid.add_row(title, text)
    return grid


def _range(knob: Knob) -> str:
    if knob.kind is bool:
        return "on, off"
    if knob.choices:
        return ", ".join(choice or "–" for choice in knob.choices)
    return "" if knob.low is None or knob.high is None else f"{knob.low:g} … {knob.high:g}"


def _as_json(knob: Knob) -> dict[str, object]:
    return {
        "name": knob.name,
        "place": str(knob.place),
        "default": knob.default,
        "meaning": knob.meaning,
        "effect": str(knob.effect),
        "switch": str(knob.switch),
        "low": knob.low,
        "high": knob.high,
        "choices": list(knob.choices),
        "unit": knob.unit,
        "searched": not knob.carried,
        "realised": knob.realised,
    }
