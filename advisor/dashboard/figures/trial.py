"""Figures of one trial: every timed step with the warm-up marked, and the own work of each rank in each block."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import plotly.graph_objects as go

from advisor.dashboard import formats
from advisor.dashboard.figures.charts import ACCENT, BASELINE, Figure, Table, close_figure, lay_out
from advisor.protocol.gains import spell_percent

_MOST_POINTS = 2000
_MOST_RANKS = 32
_MOST_CELLS = 2048
_LEAST_SPREAD = 0.05
"""The colours span at least this share of the median above and below it: noise alone must not look like a pattern."""


@dataclass(frozen=True)
class StepSeries:
    """The step times of one block."""

    label: str
    step_time_s: tuple[float, ...] = field(repr=False)
    warmup: int = 0
    """Steps at its beginning that are left out of its figures: it had not settled yet."""


@dataclass(frozen=True)
class RankBlock:
    """What each rank took in one block, in seconds."""

    label: str
    seconds: tuple[float, ...] = field(repr=False)


def draw_steps(series: Sequence[StepSeries], untimed: int = 0) -> Figure:
    """Draw the time of every step of a trial's blocks, one after another, thinned to 2000 points.

    `untimed`: warm-up steps before the timed ones of each block.
    """
    figure = go.Figure()
    offset = 0
    stride = max(1, sum(len(block.step_time_s) for block in series) // _MOST_POINTS)
    for index, block in enumerate(series):
        colour = ACCENT if index % 2 == 0 else BASELINE
        # Every step of a warm-up is drawn: there are few, and they are what is looked for.
        for name, first, last, step, symbol, size in (
            ("warm-up, left out", 0, block.warmup, 1, "x", 8),
            (block.label, block.warmup, len(block.step_time_s), stride, "circle", 5),
        ):
            if first < last:
                figure.add_scatter(
                    x=list(range(offset + first, offset + last, step)),
                    y=[seconds * 1000 for seconds in block.step_time_s[first:last:step]],
                    mode="markers", name=name, marker={"size": size, "color": colour, "symbol": symbol},
                    hovertemplate=f"{block.label}{'' if name == block.label else ', warm-up'}: "
                    "%{y:.2f} ms<extra></extra>",
                )  # fmt: skip
        offset += len(block.step_time_s)
    lay_out(
        figure,
        240,
        xaxis_title="timed steps of all blocks (×: warm-up)",
        yaxis_title={"text": "ms", "standoff": 10},
    )
    figure.update_yaxes(rangemode="tozero")
    times = sorted(seconds for block in series for seconds in block.step_time_s)
    rows = tuple(
        (
            block.label, str(len(block.step_time_s)), str(block.warmup), formats.milliseconds(min(block.step_time_s)),
            formats.milliseconds(sorted(block.step_time_s)[len(block.step_time_s) // 2]),
            formats.milliseconds(max(block.step_time_s)),
        )
        for block in series
    )  # fmt: skip
    return Figure(
        id="steps",
        title="Every timed step",
        summary=f"{formats.plural(len(times), 'timed step')} between {formats.milliseconds(times[0])} and "
        f"{formats.milliseconds(times[-1])} ms, half of them below {formats.milliseconds(times[len(times) // 2])} ms. "
        + _describe_warmup(sum(block.warmup for block in series), untimed),
        table=Table(("block", "steps", "warm-up", "fastest ms", "median ms", "slowest ms"), rows),
        plot=close_figure(figure),
        height=240,
    )


def _describe_warmup(cut: int, untimed: int) -> str:
    before = (
        f" {formats.plural(untimed, 'step')} of warm-up came before those of each block." if untimed else ""
    )
    if not cut:
        return f"None of them is left out as warm-up.{before}"
    return f"{cut} of them (×) {'is' if cut == 1 else 'are'} warm-up and not counted.{before}"


def draw_ranks(blocks: Sequence[RankBlock], what: str) -> Figure:
    """Draw `what` each rank took in each block as a map of colours: a slow rank is a row, drift a column.

    Beyond 32 ranks those that took longest are drawn; of many blocks the latest.
    """
    world = min(len(block.seconds) for block in blocks)
    usual = [median(block.seconds) for block in blocks]
    over = [
        median(b.seconds[rank] / u for b, u in zip(blocks, usual, strict=True)) - 1.0 for rank in range(world)
    ]
    shown = sorted(sorted(range(world), key=lambda rank: -over[rank])[:_MOST_RANKS])
    drawn = list(zip(blocks, usual, strict=True))[-max(1, _MOST_CELLS // len(shown)) :]
    cells = [
        (place, rank, block.seconds[rank] * 1000, block.seconds[rank] / middle - 1.0, block.label)
        for place, (block, middle) in enumerate(drawn, start=1)
        for rank in shown
    ]
    values, middle_ms = [ms for _, _, ms, _, _ in cells], median(usual) * 1000
    # Bars side by side, not a heat map: Plotly styles that inline, which our pages do not allow.
    figure = go.Figure(
        go.Bar(
            orientation="h",
            base=[place - 0.5 for place, *_ in cells],
            x=[1.0] * len(cells),
            y=[f"rank {rank}" for _, rank, *_ in cells],
            marker={
                "color": [round(ms, 3) for ms in values],
                "cmin": round(min(*values, middle_ms * (1 - _LEAST_SPREAD)), 3),
                "cmax": round(max(*values, middle_ms * (1 + _LEAST_SPREAD)), 3),
                "colorscale": [[0, "rgba(0,114,178,0.08)"], [1, ACCENT]],
                "line": {"width": 0},
            },
            text=[
                f"{label}: {ms:.2f} ms, {share:+.1%} of the median rank" for _, _, ms, share, label in cells
            ],
            textposition="none",
            hovertemplate="%{y}, %{text}<extra></extra>",
        )
    )
    height = 160 if len(shown) <= 4 else 240 if len(shown) <= 10 else 340
    lay_out(figure, height, xaxis_title="measured blocks in their order", bargap=0.12)
    names = [f"rank {rank}" for rank in shown]
    figure.update_yaxes(autorange="reversed", type="category", categoryarray=names, dtick=1)
    figure.update_xaxes(range=[0.5, len(drawn) + 0.5], dtick=max(1, round(len(drawn) / 10)), tickformat="d")
    rows = tuple(
        (
            str(rank), formats.milliseconds(median(block.seconds[rank] for block in blocks)),
            formats.milliseconds(min(block.seconds[rank] for block in blocks)),
            formats.milliseconds(max(block.seconds[rank] for block in blocks)),
            spell_percent(1.0 + over[rank]),
        )
        for rank in shown
    )  # fmt: skip
    return Figure(
        id="ranks-map",
        title="Each rank in each block",
        summary=_summarise(blocks, over, what, world, len(shown), len(drawn)),
        table=Table(("rank", "median ms", "least ms", "most ms", "over the median rank"), rows),
        plot=close_figure(figure),
        height=height,
    )


def _summarise(
    blocks: Sequence[RankBlock], over: Sequence[float], what: str, world: int, shown: int, drawn: int
) -> str:
    slowest = max(range(world), key=lambda rank: over[rank])
    times = sum(max(range(world), key=lambda rank: block.seconds[rank]) == slowest for block in blocks)
    where = f"{world} ranks in {formats.plural(len(blocks), 'block')}"
    words = (
        f"{what[0].upper()}{what[1:]}, {where}, a fuller colour is longer: rank {slowest} takes longest, "
        f"{spell_percent(1.0 + over[slowest])} over the median rank, and was the slowest in {times} of {len(blocks)}."
    )
    if shown < world:
        words += f" Drawn are the {shown} ranks that take longest."
    if drawn < len(blocks):
        words += f" Drawn are the latest {drawn} blocks."
    return words
