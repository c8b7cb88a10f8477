"""The evidence beside the verdict, in plain text: what may bound a step, scaling, speed against loss."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from advisor.cli.views.wording import count, spell_bits, spell_changes, spell_rate
from advisor.protocol.answers.advice import Diagnosis, Finding, ParetoPoint, name_bound
from advisor.protocol.answers.forecast import Forecast
from advisor.protocol.gains import spell_gain, spell_share

_POINTS_SHOWN = 8


def say_scaling(diagnosis: Diagnosis) -> str:
    """Return how much of the devices' time is not lost to communication, before and after; empty when unknown."""
    before, after = diagnosis.scaling_before, diagnosis.scaling_after
    if before is None:
        return ""
    text = f"Scaling efficiency (a step without communication over the step): {spell_share(before)}"
    return f"{text} before, {spell_share(after)} after." if after is not None else f"{text}."


def render_findings(findings: Sequence[Finding]) -> RenderableType:
    """Return what may bound a step, each with its evidence and the knobs that it rules in or out."""
    lines = []
    for finding in findings:
        share = f"{spell_share(finding.share)} of the step{', which it bounds' if finding.holds else ''}"
        line = Text.assemble("· ", (name_bound(finding.bound), "bold"), f", {share}: {finding.evidence}")
        if finding.knobs_in:
            line.append(f" Searched: {', '.join(finding.knobs_in)}.", style="dim")
        if finding.knobs_out:
            line.append(f" Left out: {', '.join(finding.knobs_out)}.", style="dim")
        lines.append(line)
    return Group(*lines)


def render_pareto(points: Sequence[ParetoPoint]) -> RenderableType:
    """Return strategies with their throughput and loss; those on the front have none that is faster and no worse."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    table.add_column("trial", justify="right", no_wrap=True)
    table.add_column("speed", justify="right", no_wrap=True)
    table.add_column("loss", justify="right", no_wrap=True)
    table.add_column("front", no_wrap=True)
    table.add_column("strategy", overflow="fold", ratio=1)
    shown = [point for point in points if point.on_front]
    shown += [point for point in points if not point.on_front][: max(0, _POINTS_SHOWN - len(shown))]
    for point in sorted(shown, key=lambda point: -point.throughput_ratio):
        table.add_row(
            str(point.trial_number),
            spell_gain(point.throughput_ratio),
            spell_loss(point),
            "yes" if point.on_front else "",
            spell_changes(point.changes),
        )
    if left := len(points) - len(shown):
        return Group(table, Text(f"… and {left} more that others beat: --json has all.", style="dim"))
    return table


def spell_loss(point: ParetoPoint) -> str:
    """`+0.012 ± 0.004`, `same` for exact strategies, `not seen`."""
    if point.loss_change is None:
        return "not seen"
    if point.loss_change == 0 and point.loss_error is None:
        return "same"
    error = f" ± {point.loss_error:.2g}" if point.loss_error is not None else ""
    return f"{point.loss_change:+.3g}{error}".replace("-", "−")


def render_forecasts(forecasts: Sequence[Forecast]) -> RenderableType:
    """Return the cost model's what-ifs as a table."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    table.add_column("cluster", no_wrap=True)
    table.add_column(forecasts[0].rate_unit, justify="right", no_wrap=True)
    table.add_column("band", no_wrap=True)
    table.add_column("scaling", justify="right")
    table.add_column("best settings", overflow="fold", ratio=1)
    for found in forecasts:
        links = f", {spell_bits(found.bits_per_s)}" if found.bits_per_s else ""
        table.add_row(
            f"{count(found.nodes, 'node')}{links}",
            spell_rate(found.samples_per_s),
            f"{spell_rate(found.low)} … {spell_rate(found.high)}",
            spell_share(found.scaling_efficiency),
            spell_changes(found.changes),
        )
    return Group(table, Text(forecasts[0].caveat + " advisor predict asks for other clusters.", style="dim"))
