"""Where the time of a step goes, before and after, as bars in plain text."""

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from advisor.protocol.measured.results import NOTICEABLE_S, Phases

_BAR_COLUMNS = 24

LEGEND_CHANGE = "█ still there   ░ saved   ▒ added"


def render_phases(before: Phases, after: Phases | None) -> Table:
    """Return the table of phases; with `after`, what each gained or lost."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    table.add_column("of each step", no_wrap=True)
    table.add_column("before" if after else "time", justify="right", no_wrap=True)
    if after:
        table.add_column("after", justify="right", no_wrap=True)
        table.add_column("change", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    befores = before.list_shown(after or before)
    afters = after.list_shown(before) if after else befores
    longest = max([0.0, *(seconds or 0.0 for _, seconds in befores + afters)])
    for (name, was), (_, now) in zip(befores, afters, strict=True):
        cells = [name, _milliseconds(was)]
        if after:
            cells += [_milliseconds(now), _difference(was, now)]
        table.add_row(*cells, _bar(was or 0.0, now or 0.0, longest))
    table.add_section()
    total: list[RenderableType] = [Text("one step", style="bold"), _milliseconds(before.total_s())]
    if after:
        total += [_milliseconds(after.total_s()), _difference(before.total_s(), after.total_s())]
    table.add_row(*total, "")
    return table


def _milliseconds(seconds: float | None) -> str:
    return "not measured" if seconds is None else f"{seconds * 1000:.1f} ms"


def _difference(was: float | None, now: float | None) -> str:
    if was is None or now is None:
        return ""
    if abs(now - was) < NOTICEABLE_S:
        return "0.0"
    return f"{(now - was) * 1000:+.1f}".replace("-", "−")


def _bar(was: float, now: float, longest: float) -> Text:
    """`█` what is there before and after, `░` what went away, `▒` what came."""
    if longest <= 0:
        return Text("")
    first, last = (round(seconds / longest * _BAR_COLUMNS) for seconds in (was, now))
    both = min(first, last)
    return Text.assemble(
        ("█" * both, "cyan"), ("░" * (first - both), "green"), ("▒" * (last - both), "yellow")
    )
