"""Figures as Plotly JSON, each with a one-sentence summary and a table of the same numbers.

Colours are those of Okabe and Ito, which eyes of every kind tell apart, and each comes with a shape or a pattern of its
own; the browser fills in text and grid from its theme.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import plotly.graph_objects as go

from advisor.dashboard import formats
from advisor.protocol.measured.results import Phases

BASELINE = "#8b93a3"
ACCENT = "#0072b2"
BETTER = "#009e73"
WORSE = "#d55e00"
NUMERIC = "#e69f00"
CONVERGENCE = "#cc79a7"
SKY = "#56b4e9"


@dataclass(frozen=True)
class Table:
    """A figure's numbers in rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Figure:
    """A chart and the two other ways to read it."""

    id: str
    title: str
    summary: str
    """One sentence that says what the chart shows."""
    table: Table
    plot: str
    """Plotly JSON: data and layout; empty where `svg` is the chart."""
    height: int
    """In CSS pixels; one of the classes that advisor.css knows."""
    svg: str = ""
    """The chart itself, which needs no JavaScript."""


def close_figure(figure: go.Figure) -> str:
    """Return the Plotly JSON of a figure, safe inside a script element."""
    # Only data and layout travel: the template would add 8 KB to every figure and fight the theme.
    content = json.loads(figure.to_json())
    content["layout"].pop("template", None)
    text = json.dumps({"data": content["data"], "layout": content["layout"]}, allow_nan=False)
    # Inside <script> the sequence "</" would end the element.
    return text.replace("<", "\\u003c").replace("&", "\\u0026")


def lay_out(figure: go.Figure, height: int, **more: object) -> None:
    """Give a figure the looks that all share; `more` is Plotly's layout."""
    figure.update_layout(
        height=height,
        margin={"l": 8, "r": 12, "t": 8, "b": 36},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hovermode="closest",
        showlegend=False,
        **more,
    )
    figure.update_xaxes(automargin=True, zeroline=False)
    figure.update_yaxes(automargin=True, zeroline=False)


def list_phases(phases: Phases) -> list[tuple[str, float]]:
    """Return the phases of a step by name, in seconds; an unmeasured one counts as 0."""
    return [(name, seconds or 0.0) for name, seconds in phases.list_shown()]


_FOR_WORDS = 0.3
"""A figure behind the longest bar takes this share of the bars on a phone."""


def _frame_waterfall(before_ms: float, levels: Sequence[float]) -> tuple[float, float]:
    """Choose the axis: small changes of a long step would vanish beside zero, so it then starts further on."""
    span = max(levels) - min(levels)
    start = min(levels) - max(span, before_ms * 0.02) * 0.8
    start = float(round(start, -1 if start >= 50 else 0)) if start > before_ms * 0.3 else 0.0
    return start, max(levels) + (max(levels) - start) * _FOR_WORDS


def draw_waterfall(before: Phases, after: Phases) -> Figure:
    """Draw how the step time of the baseline becomes that of the strategy, phase by phase."""
    old, new = (
        {name: s or 0.0 for name, s in phases.list_shown(before, after)} for phases in (before, after)
    )
    names = list(old)
    deltas = [new[name] - old[name] for name in names]
    levels = [before.total_s() * 1000]
    for delta in deltas:
        levels.append(levels[-1] + delta * 1000)
    steps = ["before", *names, "after"]
    figure = go.Figure(
        go.Waterfall(
            orientation="h",
            measure=["absolute", *["relative"] * len(names), "total"],
            y=steps,
            x=[before.total_s() * 1000, *[delta * 1000 for delta in deltas], after.total_s() * 1000],
            decreasing={"marker": {"color": BETTER}},
            increasing={"marker": {"color": WORSE}},
            totals={"marker": {"color": BASELINE}},
            connector={"visible": False},
            hovertemplate="%{y}: %{x:.2f} ms<extra></extra>",
        )
    )
    # Behind every bar, also one that goes down: in front of it a figure could lie on the axis and its names.
    figure.add_scatter(
        x=[levels[0], *[max(pair) for pair in pairwise(levels)], after.total_s() * 1000], y=steps, mode="text",
        textposition="middle right", cliponaxis=False, hoverinfo="skip",
        text=[
            f"\u00a0{words}"
            for words in (
                formats.milliseconds(before.total_s()), *(formats.signed_milliseconds(delta) for delta in deltas),
                formats.milliseconds(after.total_s()),
            )
        ],
    )  # fmt: skip
    start, end = _frame_waterfall(levels[0], levels)
    lay_out(figure, 340, xaxis_title=f"ms per step, from {start:g}" if start else "ms per step")
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(range=[start, end])
    largest = max(range(len(names)), key=lambda index: abs(deltas[index]))
    rows = tuple(
        (name, formats.milliseconds(old[name]), formats.milliseconds(new[name]),
         formats.signed_milliseconds(new[name] - old[name]))
        for name in names
    )  # fmt: skip
    total = (
        "step", formats.milliseconds(before.total_s()), formats.milliseconds(after.total_s()),
        formats.signed_milliseconds(after.total_s() - before.total_s()),
    )  # fmt: skip
    return Figure(
        id="waterfall",
        title="Where the step time went",
        summary=(
            f"A step takes {formats.milliseconds(before.total_s())} ms before and "
            f"{formats.milliseconds(after.total_s())} ms after; the largest change is {names[largest]}, "
            f"{formats.signed_milliseconds(deltas[largest])} ms."
        ),
        table=Table(("phase", "before ms", "after ms", "change ms"), (*rows, total)),
        plot=close_figure(figure),
        height=340,
    )


_LOOKS = {
    "data wait": (NUMERIC, ""),
    "forward": (SKY, ""),
    "backward": (ACCENT, ""),
    "exposed communication": (WORSE, "/"),
    "broadcast of buffers": (WORSE, "-"),
    "other collectives": (WORSE, "x"),
    "waiting for other ranks": (WORSE, "."),
    "optimizer": (CONVERGENCE, "."),
    "own code": (BASELINE, ""),
    "evaluation and saving": (BASELINE, "/"),
    "garbage collection": (BASELINE, "x"),
    "compiling": (BASELINE, "+"),
    "stalls": ("#5b6270", "x"),
}
"""Colour and pattern of each part of a step, wherever it is drawn."""


def draw_phases(series: Sequence[tuple[str, Phases]], title: str) -> Figure:
    """Draw the phases of one step as stacked bars, one bar per entry of `series`."""
    named = [dict(phases.list_shown(*(other for _, other in series))) for _, phases in series]
    shown = list(named[0])
    figure = go.Figure()
    for name in shown:
        colour, pattern = _LOOKS[name]
        figure.add_bar(
            orientation="h", name=name, y=[label for label, _ in series],
            x=[(phases[name] or 0.0) * 1000 for phases in named],
            marker={
                "color": colour,
                "pattern": {"shape": pattern, "fillmode": "overlay", "solidity": 0.15},
            },
            hovertemplate=f"{name}: %{{x:.2f}} ms<extra></extra>",
        )  # fmt: skip
    height = (200, 240, 300, 340)[min(len(series), 4) - 1]
    figure.update_layout(legend_traceorder="normal")
    lay_out(figure, height, barmode="stack", bargap=0.35, xaxis_title="ms per step")
    figure.update_layout(showlegend=True, legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0})
    figure.update_layout(margin={"t": 44})
    figure.update_yaxes(autorange="reversed")
    rows = tuple((name, *[formats.milliseconds(phases[name]) for phases in named]) for name in shown)
    label, first = series[0]
    slowest, seconds = max(list_phases(first), key=lambda item: item[1])
    share = seconds / first.total_s() if first.total_s() else 0.0
    return Figure(
        id="phases",
        title=title,
        summary=f"{label}: {slowest} takes {formats.percent(share)} of a step of "
        f"{formats.milliseconds(first.total_s())} ms.",
        table=Table(("phase", *[f"{label} ms" for label, _ in series]), rows),
        plot=close_figure(figure),
        height=height,
    )
