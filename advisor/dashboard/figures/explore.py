"""Figures of what a search saw: the gain against each knob, what each knob saves, and speed against loss."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import plotly.graph_objects as go

from advisor.dashboard import formats
from advisor.dashboard.figures.axes import KnobAxis
from advisor.dashboard.figures.charts import (
    ACCENT,
    BASELINE,
    BETTER,
    MARKS,
    WORSE,
    Figure,
    Table,
    close_figure,
    lay_out,
)
from advisor.dashboard.figures.gains import TITLE, Gain, frame_gains, to_percent
from advisor.protocol.base import Value
from advisor.protocol.gains import spell_gain

_ROWS = 24
"""Most rows of a slice's table; a continuous knob has a value for each trial."""


@dataclass(frozen=True)
class SlicePoint:
    """One trial in the slice of a knob."""

    trial: int
    value: Value
    gain: Gain
    kind: str
    """baseline, exact, numeric or convergence."""


@dataclass(frozen=True)
class Saving:
    """What taking a knob back measured, in milliseconds a step."""

    label: str
    saved_ms: float
    low_ms: float
    high_ms: float
    rounds: int
    was_kept: bool

    @property
    def is_settled(self) -> bool:
        """Whether the interval leaves out no effect."""
        return self.low_ms > 0 or self.high_ms < 0


@dataclass(frozen=True)
class LossPoint:
    """One strategy in the plane of throughput and loss."""

    trial: int
    label: str
    kind: str
    gain_percent: float
    loss_change: float | None
    """None where it was not seen: such a strategy has no place in the plane."""
    loss_error: float
    on_front: bool


def _title(text: str) -> dict[str, object]:
    return {"text": text, "standoff": 10}


def draw_slice(name: str, points: Sequence[SlicePoint]) -> Figure:
    """Draw the gain against one knob: a mark for each trial, a line through the median of each value."""
    by_value: defaultdict[Value, list[SlicePoint]] = defaultdict(list)
    for point in points:
        by_value[point.value].append(point)
    axis = KnobAxis.of(name, by_value)
    values = axis.values
    medians = {value: median(point.gain.ratio for point in by_value[value]) for value in values}
    figure = go.Figure()
    figure.add_scatter(
        x=[axis.show(value) for value in values], y=[to_percent(medians[value]) for value in values],
        mode="lines", line={"color": BASELINE, "width": 1.5, "dash": "dot"}, hoverinfo="skip", name="median",
    )  # fmt: skip
    for kind, (colour, symbol, label) in MARKS.items():
        chosen = [point for point in points if point.kind == kind]
        if not chosen:
            continue
        figure.add_scatter(
            x=[axis.show(point.value) for point in chosen], y=[to_percent(point.gain.ratio) for point in chosen],
            customdata=[point.trial for point in chosen], mode="markers", name=label,
            marker={"color": colour, "symbol": symbol, "size": 8},
            hovertemplate=f"trial %{{customdata}}: %{{y:+.1f}} % at %{{x}} {axis.unit}<extra></extra>",
        )  # fmt: skip
    lay_out(figure, 240, xaxis_title=axis.unit or "value", yaxis_title=_title(TITLE))
    figure.update_xaxes(**axis.describe())
    figure.update_yaxes(range=frame_gains([Gain(*[point.gain.ratio] * 3) for point in points]))
    best = max(values, key=lambda value: medians[value])
    words = {value: axis.spell(value) for value in values}
    summary = f"{formats.plural(len(values), 'value')} in {formats.plural(len(points), 'trial')}"
    if len(values) > 1:
        worst = min(values, key=lambda value: medians[value])
        summary += (
            f": the median gain is highest at {words[best]} ({spell_gain(medians[best])}) "
            f"and lowest at {words[worst]} ({spell_gain(medians[worst])})"
        )
    rows = [
        (
            words[value], str(len(by_value[value])), spell_gain(medians[value]),
            spell_gain(max(point.gain.ratio for point in by_value[value])),
        )
        for value in values
    ]  # fmt: skip
    if len(rows) > _ROWS:
        kept = set(sorted(values, key=lambda value: -medians[value])[:_ROWS])
        rows = [row for value, row in zip(values, rows, strict=True) if value in kept]
        summary += f"; the table has the {_ROWS} values with the highest median"
    return Figure(
        id=f"slice-{name}",
        title=name,
        summary=f"{summary}.",
        table=Table(("value", "trials", "median gain", "best gain"), tuple(rows)),
        plot=close_figure(figure),
        height=240,
    )


def _break_lines(label: str) -> str:
    """A knob and its value in two lines, several knobs in one each: on a phone the plot needs the width."""
    return label.replace(" + ", "<br>+ ") if " + " in label else label.replace(" ", "<br>", 1)


def draw_importance(savings: Sequence[Saving]) -> Figure:
    """Draw what each knob of the winner saves, the largest first, with its 95 % interval."""
    ordered = sorted(savings, key=lambda saving: -abs(saving.saved_ms))
    figure = go.Figure()
    looks = (
        ("saves time", lambda s: s.is_settled and s.saved_ms > 0, BETTER, "diamond"),
        ("costs time", lambda s: s.is_settled and s.saved_ms < 0, WORSE, "x"),
        ("not settled: the interval holds 0", lambda s: not s.is_settled, BASELINE, "circle-open"),
    )
    for label, belongs, colour, symbol in looks:
        chosen = [saving for saving in ordered if belongs(saving)]
        if not chosen:
            continue
        figure.add_scatter(
            x=[saving.saved_ms for saving in chosen], y=[saving.label for saving in chosen], mode="markers",
            name=label, marker={"color": colour, "symbol": symbol, "size": 11},
            error_x={
                "type": "data", "symmetric": False, "thickness": 2, "width": 7, "color": colour,
                "array": [saving.high_ms - saving.saved_ms for saving in chosen],
                "arrayminus": [saving.saved_ms - saving.low_ms for saving in chosen],
            },
            hovertemplate="%{y}: %{x:.2f} ms a step<extra></extra>",
        )  # fmt: skip
    height = next((size for size, most in ((200, 3), (240, 5), (300, 8)) if len(ordered) <= most), 340)
    lay_out(figure, height, xaxis_title="ms a step saved<br>bar: 95 % interval")
    figure.update_layout(showlegend=True, legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0})
    figure.update_layout(margin={"t": 40})
    labels = [saving.label for saving in reversed(ordered)]
    figure.update_yaxes(
        categoryorder="array", categoryarray=labels, type="category",
        tickmode="array", tickvals=labels, ticktext=[_break_lines(label) for label in labels],
    )  # fmt: skip
    figure.add_vline(x=0, line={"color": BASELINE, "width": 1})
    first = ordered[0]
    sure = [saving for saving in ordered if saving.is_settled and saving.saved_ms > 0]
    summary = (
        f"{sure[0].label} saves most for sure: {_signed(sure[0].saved_ms)} ms a step, 95 % interval "
        f"{_signed(sure[0].low_ms)} … {_signed(sure[0].high_ms)}."
        if sure
        else f"No knob alone is sure to save time; {first.label} comes nearest: {_signed(first.saved_ms)} ms a step."
    )
    rows = tuple(
        (
            saving.label, _signed(saving.saved_ms), f"{_signed(saving.low_ms)} … {_signed(saving.high_ms)}",
            str(saving.rounds), "kept" if saving.was_kept else "taken back",
        )
        for saving in ordered
    )  # fmt: skip
    return Figure(
        id="importance",
        title="What each knob saves",
        summary=summary,
        table=Table(("knob", "saved ms", "95 % interval", "rounds", "in the end"), rows),
        plot=close_figure(figure),
        height=height,
    )


def _signed(milliseconds: float) -> str:
    return formats.signed_milliseconds(milliseconds / 1000)


def draw_pareto(points: Sequence[LossPoint], tolerance: float | None, share: float) -> Figure:
    """Draw strategies in the plane of throughput and loss, the front joined, with the tolerance of the job.

    `share` is the tolerance as the job states it; `tolerance` the same in units of the loss, None where unknown.
    """
    figure = go.Figure()
    placed = [(point, point.loss_change) for point in points if point.loss_change is not None]
    front = sorted((pair for pair in placed if pair[0].on_front), key=lambda pair: pair[0].gain_percent)
    figure.add_scatter(
        x=[point.gain_percent for point, _ in front], y=[loss for _, loss in front], mode="lines",
        line={"color": ACCENT, "width": 1.5, "shape": "hv"}, hoverinfo="skip", name="front",
    )  # fmt: skip
    for kind, (colour, symbol, label) in MARKS.items():
        chosen = [(point, loss) for point, loss in placed if point.kind == kind]
        if not chosen:
            continue
        figure.add_scatter(
            x=[point.gain_percent for point, _ in chosen], y=[loss for _, loss in chosen], mode="markers",
            name=label, marker={"color": colour, "symbol": symbol, "size": 10},
            error_y={"type": "data", "array": [point.loss_error for point, _ in chosen], "color": colour, "width": 4},
            text=[f"trial {point.trial}: {point.label}" for point, _ in chosen],
            hovertemplate="%{text}<br>%{x:+.1f} %, loss %{y:+.3g}<extra></extra>",
        )  # fmt: skip
    lay_out(figure, 300, xaxis_title=TITLE, yaxis_title=_title("loss change"))
    figure.update_layout(showlegend=True, legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0})
    figure.update_layout(margin={"t": 40})
    if tolerance is not None:
        figure.add_scatter(
            x=[min(p.gain_percent for p, _ in placed), max(p.gain_percent for p, _ in placed)], y=[tolerance] * 2,
            mode="lines", line={"color": WORSE, "width": 1.5, "dash": "dash"}, name="tolerated", hoverinfo="skip",
        )  # fmt: skip
    fastest, loss = max(placed, key=lambda pair: pair[0].gain_percent)
    count = len(placed)
    summary = (
        f"{count} {'strategy' if count == 1 else 'strategies'} with a known loss; the fastest is trial "
        f"{fastest.trial}, {spell_gain(1 + fastest.gain_percent / 100)} at a loss change of {_loss(loss)}. "
        f"The job tolerates {share * 100:g} % of the loss's drop"
    )
    summary += (
        f", about {tolerance:.3g} by its end."
        if tolerance is not None
        else "; no drop was seen to draw it at."
    )
    unseen = len(points) - count
    summary += f" {unseen} more showed no loss: in the table only." if unseen else ""
    rows = tuple(
        (
            f"trial {point.trial}: {point.label}", spell_gain(1 + point.gain_percent / 100),
            "not seen" if point.loss_change is None else _loss(point.loss_change),
            f"± {point.loss_error:.2g}" if point.loss_error else formats.NO_VALUE,
            "yes" if point.on_front else "no",
        )
        for point in points
    )  # fmt: skip
    return Figure(
        id="pareto",
        title="Speed against loss",
        summary=summary,
        table=Table(("strategy", "gain", "loss change", "standard error", "front"), rows),
        plot=close_figure(figure),
        height=300,
    )


def _loss(change: float) -> str:
    return f"{change:+.3g}".replace("-", "−") if change else "same"
