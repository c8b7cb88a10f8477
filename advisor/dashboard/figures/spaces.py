"""Figures of several knobs at once: the gain over two of them, and every trial as a line through all of them."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import plotly.graph_objects as go

from advisor.dashboard import formats
from advisor.dashboard.figures.axes import KnobAxis
from advisor.dashboard.figures.charts import (
    ACCENT,
    BASELINE,
    MARKS,
    SKY,
    Figure,
    Table,
    close_figure,
    lay_out,
)
from advisor.dashboard.figures.gains import to_percent
from advisor.protocol.base import Value
from advisor.protocol.gains import spell_gain

_SHADES = [[0.0, "#e3eef7"], [0.5, SKY], [1.0, ACCENT]]
MOST_LINES = 150
"""Of more trials the fastest are drawn: lines upon lines tell nothing."""
MOST_AXES = 8
_LONGEST_LINE = 22
"""Letters of a name that a phone has room for beside a figure."""
_ROWS = 24


@dataclass(frozen=True)
class SpacePoint:
    """One trial, with a value for every knob that was varied."""

    trial: int
    values: Mapping[str, Value]
    ratio: float
    """Its throughput over the baseline's."""
    kind: str
    """baseline, exact, numeric or convergence."""


_SHADED_VALUES = 3
"""Values of each knob, and half of the pairs, from which shades are drawn."""


def draw_contour(names: tuple[str, str], points: Sequence[SpacePoint]) -> Figure:
    """Draw the gain over two knobs: marks for trials, and shades between the medians of the pairs that were tried."""
    cells: defaultdict[tuple[Value, Value], list[float]] = defaultdict(list)
    across, up = (KnobAxis.of(name, [point.values[name] for point in points]) for name in names)
    for point in points:
        cells[point.values[across.name], point.values[up.name]].append(point.ratio)
    medians = {pair: median(found) for pair, found in cells.items()}
    figure = go.Figure()
    # Between fewer, shades would be made of nothing.
    is_shaded = (
        min(len(across.values), len(up.values)) >= _SHADED_VALUES and len(medians) >= 2 * _SHADED_VALUES
    )
    if is_shaded:
        figure.add_contour(
            x=[across.show(value) for value in across.values], y=[up.show(value) for value in up.values],
            z=[[to_percent(medians[x, y]) if (x, y) in medians else None for x in across.values] for y in up.values],
            connectgaps=True, colorscale=_SHADES,
            contours={"showlabels": True, "labelformat": "+.0f", "labelfont": {"size": 11, "color": "#1a1f29"}},
            line={"color": BASELINE},
            # The lines say their values; a bar of colours would bring inline styles, which the policy forbids.
            showscale=False, hoverinfo="skip",
        )  # fmt: skip
    else:
        pairs = sorted(medians, key=lambda pair: (up.place(pair[1]), across.place(pair[0])))
        figure.add_scatter(
            x=[across.show(x) for x, _ in pairs], y=[up.show(y) for _, y in pairs],
            text=[spell_gain(medians[pair]) for pair in pairs], hoverinfo="skip", showlegend=False, cliponaxis=False,
            # An unseen mark of its own keeps the text off the trials' marks.
            mode="markers+text", marker={"size": 14, "opacity": 0},
            # Neighbours would write over each other: one above its mark, the next below.
            textposition=[("top center", "bottom center")[index % 2] for index in range(len(pairs))],
        )  # fmt: skip
    for kind, (_, symbol, label) in MARKS.items():
        chosen = [point for point in points if point.kind == kind]
        if chosen:
            figure.add_scatter(
                x=[across.show(point.values[across.name]) for point in chosen],
                y=[up.show(point.values[up.name]) for point in chosen],
                customdata=[(point.trial, to_percent(point.ratio)) for point in chosen],
                mode="markers", name=label, marker={
                    "symbol": symbol, "size": 8, "color": "#ffffff", "line": {"color": "#1a1f29", "width": 1.5},
                },
                hovertemplate="trial %{customdata[0]}: %{customdata[1]:+.1f} % at %{x}, %{y}<extra></extra>",
            )  # fmt: skip
    lay_out(figure, 340, xaxis_title=across.name, yaxis_title={"text": up.name, "standoff": 10})
    figure.update_xaxes(**across.describe())
    figure.update_yaxes(**up.describe())
    ordered = sorted(medians, key=lambda pair: -medians[pair])
    best, worst = ordered[0], ordered[-1]

    def spell(pair: tuple[Value, Value]) -> str:
        return f"{across.spell(pair[0])} with {up.spell(pair[1])}"

    summary = (
        f"{formats.plural(len(medians), 'pair')} of values in {formats.plural(len(points), 'trial')}: the median gain "
        f"is highest at {spell(best)} ({spell_gain(medians[best])}) and lowest at {spell(worst)} "
        f"({spell_gain(medians[worst])}). "
        + (
            "Shades between marks are interpolated."
            if is_shaded
            else "Too few pairs for shades between them."
        )
    )
    rows = tuple(
        (f"{across.spell(x)} × {up.spell(y)}", str(len(cells[x, y])), spell_gain(medians[x, y]))
        for x, y in ordered[:_ROWS]
    )
    return Figure(
        id="contour",
        title=f"{across.name} × {up.name}",
        summary=summary,
        table=Table(("pair", "trials", "median gain"), rows),
        plot=close_figure(figure),
        height=340,
    )


def draw_parallel(names: Sequence[str], points: Sequence[SpacePoint]) -> Figure:
    """Draw each trial as a line through its knobs' values to its gain; the fastest quarter stands out.

    Drawn as lines, for Plotly's own figure of this kind needs a graphics library that the content policy forbids.
    """
    ordered = sorted(points, key=lambda point: point.ratio)
    drawn = ordered[-MOST_LINES:]
    front = drawn[-max(1, len(drawn) // 4) :]
    others = drawn[: len(drawn) - len(front)]
    axes = [KnobAxis.of(name, [point.values[name] for point in points]) for name in names[:MOST_AXES]]
    speed = KnobAxis("gain", "", tuple(point.ratio for point in ordered), True, False)
    figure = go.Figure()
    groups = (
        ("other trials", others, {"color": BASELINE, "width": 1, "dash": "dot"}, 0.7),
        ("the fastest quarter", front, {"color": ACCENT, "width": 2}, 0.85),
    )
    for label, group, line, opacity in groups:
        across: list[float | None] = []
        down: list[int | None] = []
        for point in group:
            places = [axis.place(point.values[axis.name]) for axis in axes] + [speed.place(point.ratio)]
            across += [*(round(place, 3) for place in places), None]
            down += [*range(len(places)), None]
        figure.add_scatter(
            x=across,
            y=down,
            mode="lines",
            name=label,
            line=line,
            opacity=opacity,
            hoverinfo="skip",
            connectgaps=False,
        )
    height = 100 + 45 * (MOST_AXES + 1)
    lay_out(figure, height)
    figure.update_layout(showlegend=True, legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0})
    first, last = (spell_gain(point.ratio) for point in (ordered[0], ordered[-1]))
    # A row for each knob: names side by side would stand on each other, or on their heads.
    figure.update_yaxes(
        tickvals=list(range(len(axes) + 1)),
        ticktext=[
            *(f"{_fold(axis.name)}<br>{_fold_ends(_ends(axis))}" for axis in axes),
            f"gain<br>{first} … {last}",
        ],
        range=[len(axes) + 0.3, -0.3],
    )
    figure.update_xaxes(range=[-0.05, 1.05], tickvals=[0, 1], ticktext=["first", "last"])
    rows = tuple(
        (axis.name, _ends(axis), _usual(axis, front), _usual(axis, others) if others else formats.NO_VALUE)
        for axis in axes
    )
    slowest = front[0].ratio
    summary = (
        f"A line for each of {formats.plural(len(drawn), 'trial')}; the {len(front)} that stand out reach "
        f"{spell_gain(slowest)} or more."
    )
    if len(points) > len(drawn):
        summary += f" The slower {len(points) - len(drawn)} are left out."
    return Figure(
        id="parallel",
        title="Parallel coordinates",
        summary=summary,
        table=Table(
            ("knob", "values, first … last", "usual in the fastest quarter", "usual elsewhere"), rows
        ),
        plot=close_figure(figure),
        height=height,
    )


def _fold(name: str) -> str:
    """A long name in two lines, parted at the underscore that is nearest to its middle."""
    places = [place for place, letter in enumerate(name, 1) if letter == "_"]
    if len(name) <= _LONGEST_LINE or not places:
        return name
    middle = min(places, key=lambda place: abs(place - len(name) / 2))
    return f"{name[:middle]}<br>{name[middle:]}"


def _fold_ends(ends: str) -> str:
    return ends if len(ends) <= _LONGEST_LINE else ends.replace(" … ", " …<br>")


def _ends(axis: KnobAxis) -> str:
    return f"{axis.spell(axis.values[0])} … {axis.spell(axis.values[-1])}"


def _usual(axis: KnobAxis, points: Sequence[SpacePoint]) -> str:
    """The commonest value, and in how many of them."""
    (value, count) = Counter(point.values[axis.name] for point in points).most_common(1)[0]
    return f"{axis.spell(value)} ({count} of {len(points)})"
