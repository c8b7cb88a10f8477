"""What each knob that is advised saves, in ms a step, by the verdict's launches."""

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from advisor.dashboard import formats
from advisor.dashboard.figures.charts import (
    BASELINE,
    BETTER,
    WORSE,
    Figure,
    Table,
    close_figure,
    lay_out,
)


@dataclass(frozen=True)
class Saving:
    """What a knob saves, in milliseconds a step."""

    label: str
    saved_ms: float
    low_ms: float
    high_ms: float
    rounds: int

    @property
    def is_settled(self) -> bool:
        """Whether the interval leaves out no effect."""
        return self.low_ms > 0 or self.high_ms < 0


def _break_lines(label: str) -> str:
    """A knob and its value in two lines, several knobs in one each: on a phone the plot needs the width."""
    return label.replace(" + ", "<br>+ ") if " + " in label else label.replace(" ", "<br>", 1)


def draw_savings(savings: Sequence[Saving]) -> Figure:
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
            str(saving.rounds),
        )
        for saving in ordered
    )  # fmt: skip
    return Figure(
        id="savings",
        title="What each knob saves",
        summary=summary,
        table=Table(("knob", "saved ms", "95 % interval", "rounds"), rows),
        plot=close_figure(figure),
        height=height,
    )


def _signed(milliseconds: float) -> str:
    return formats.signed_milliseconds(milliseconds / 1000)
