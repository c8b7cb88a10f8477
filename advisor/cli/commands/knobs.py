"""`advisor knobs` and `advisor version`: what this release knows, without a server."""

import platform
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from advisor import __version__
from advisor.cli.options import JsonOption, screen_of
from advisor.cli.views.wording import EFFECT_WORDS, spell_value
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import Knob
from advisor.protocol.measured.messages import PROTOCOL_MAJOR


def list_knobs(
    context: typer.Context,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that are exported but never varied.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the knobs: what can be tuned, and what each may change besides the speed."""
    screen = screen_of(context)
    shown = [knob for knob in CATALOGUE.values() if everything or not knob.carried]
    if as_json:
        screen.print_json({"items": [_as_json(knob) for knob in shown]})
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    table.add_column("knob", overflow="fold")
    table.add_column("default", no_wrap=True)
    table.add_column("range", overflow="fold", max_width=20)
    table.add_column("besides the speed", overflow="fold")
    table.add_column("meaning", overflow="fold", ratio=1)
    for knob in shown:
        meaning = Text(knob.meaning)
        if knob.carried:
            meaning.append(f" {knob.realised}", style="dim")
        default = spell_value(knob.name, knob.default) or "–"
        table.add_row(
            Text(knob.name, style="bold"), default, _range(knob), EFFECT_WORDS[knob.effect], meaning
        )
    screen.show(table)


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
