"""How busy each device was over a session: one line of colours a device, so that sixteen can be read at a glance."""

from collections.abc import Sequence
from statistics import fmean

import plotly.graph_objects as go

from advisor.dashboard import formats
from advisor.dashboard.figures.charts import ACCENT, WORSE, Figure, Table, close_figure, lay_out
from advisor.protocol.measured.telemetry import SessionTelemetry, TelemetrySeries
from advisor.protocol.plain_text import clean_text

_MEASURES = {
    "sm": "share of the SMs with work",
    "busy": "GPU busy: any kernel running, waiting in NCCL too",
    "cpu": "share of the node's CPUs that the session uses",
}
_FEW_LINES = 4
_MANY_LINES = 10


def draw_utilisation(telemetry: SessionTelemetry) -> Figure | None:
    """Draw a session's devices over time; None when there is no sample."""
    series = telemetry.series
    known = [share for line in series for share in line.share if share is not None]
    if not known:
        return None
    names = [_name(line) for line in series]
    cells = [
        (place * telemetry.stretch_s, _name(line), round(share * 100, 1))
        for line in series
        for place, share in enumerate(line.share)
        if share is not None
    ]
    # Bars side by side, not a heat map: Plotly styles that inline, which our pages do not allow.
    figure = go.Figure(
        go.Bar(
            orientation="h",
            base=[at for at, _, _ in cells],
            x=[telemetry.stretch_s] * len(cells),
            y=[name for _, name, _ in cells],
            marker={
                "color": [share for _, _, share in cells],
                "cmin": 0,
                "cmax": 100,
                "colorscale": [[0, "rgba(0,114,178,0.08)"], [1, ACCENT]],
                "line": {"width": 0},
            },
            customdata=[share for _, _, share in cells],
            hovertemplate="%{y}, %{base:.0f} s: %{customdata:.0f} %<extra></extra>",
        )
    )
    slowed = [
        ((place + 0.5) * telemetry.stretch_s, _name(line))
        for line in series
        for place, is_throttled in enumerate(line.throttled)
        if is_throttled
    ]
    if slowed:
        figure.add_scatter(
            x=[at for at, _ in slowed], y=[name for _, name in slowed], mode="markers",
            marker={"color": WORSE, "size": 5, "symbol": "triangle-down"},
            hovertemplate="%{y}, %{x:.0f} s: reduced clocks<extra></extra>",
        )  # fmt: skip
    height = 160 if len(series) <= _FEW_LINES else 240 if len(series) <= _MANY_LINES else 340
    lay_out(figure, height, xaxis_title="seconds since the session began", bargap=0.2)
    figure.update_yaxes(autorange="reversed", type="category", categoryarray=names, dtick=1)
    return Figure(
        id="utilisation",
        title="How busy the latest session was",
        summary=_summarise(series, names, len({name for _, name in slowed})),
        table=Table(
            ("device", "mean", "least", "most", "W", "reduced clocks"), tuple(_row(line) for line in series)
        ),
        plot=close_figure(figure),
        height=height,
    )


def _summarise(series: Sequence[TelemetrySeries], names: Sequence[str], throttled: int) -> str:
    means = [(_mean(line), name) for line, name in zip(series, names, strict=True)]
    measured = [(mean, name) for mean, name in means if mean is not None]
    low, high = min(measured), max(measured)
    what = _MEASURES.get(series[0].measure, "")
    words = f"On average {formats.percent(fmean(mean for mean, _ in measured))} ({what})"
    if len(measured) > 1:
        words += f"; least on {low[1]} with {formats.percent(low[0])}"
        words += f", most on {high[1]} with {formats.percent(high[0])}"
    if throttled:
        words += f"; {formats.plural(throttled, 'device')} ran with reduced clocks at times"
    return f"{words}."


def _row(line: TelemetrySeries) -> tuple[str, ...]:
    known = [share for share in line.share if share is not None]
    power = [watt for watt in line.power_w if watt is not None]
    slowed = sum(line.throttled) / len(line.throttled) if line.throttled else None
    return (
        _name(line),
        formats.percent(_mean(line)),
        formats.percent(min(known, default=None)),
        formats.percent(max(known, default=None)),
        f"{fmean(power):.0f}" if power else formats.NO_VALUE,
        formats.percent(slowed),
    )


def _mean(line: TelemetrySeries) -> float | None:
    known = [share for share in line.share if share is not None]
    return fmean(known) if known else None


def _name(line: TelemetrySeries) -> str:
    agent = clean_text(line.agent)
    return agent if line.device is None else f"{agent} GPU {line.device}"
