"""`advisor predict`: what a tuned job would gain on more nodes, over other links, with another batch."""

import os
from typing import Annotated

import typer

from advisor.cli.connection import look_at, resolve_job
from advisor.cli.options import JobArgument, JsonOption, screen_of
from advisor.cli.views.wording import spell_bits, spell_changes, spell_rate
from advisor.protocol.answers.advice import Forecast
from advisor.protocol.gains import spell_share


def predict(
    context: typer.Context,
    job: JobArgument,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1, max=4096, help="Nodes, each with as many ranks as measured.", show_default="as measured"
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="What each node's link carries, e.g. 25gbit or 400mbit.",
            show_default="as measured",
        ),
    ] = None,
    batch: Annotated[
        float | None,
        typer.Option(
            min=0.0625,
            max=64,
            metavar="TIMES",
            help="Batch factor: a multiple of the measured per-rank batch; 2 is twice.",
            show_default="as measured",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict throughput and the best strategy on another cluster or with another batch, from what a job measured.

    advisor predict last --nodes 8 --rate 25gbit

    The cost model is fitted to the job's own measurements. The band says how far they let it see: it is a prediction,
    and a job on those nodes is the proof.
    """
    screen = screen_of(context)
    with look_at(os.environ) as client:
        found = resolve_job(client, job)
        answer = client.forecast(found.id, nodes, rate, batch)
    if as_json:
        screen.print_json(answer)
    else:
        screen.print_text(render_forecast(answer))


def render_forecast(found: Forecast) -> str:
    """Return the forecast as lines of text."""
    where = f"{found.nodes} node{'s' if found.nodes != 1 else ''}"
    if found.bits_per_s:
        where += f" with links of {spell_bits(found.bits_per_s)}"
    if found.batch != 1.0:
        where += f", {found.batch:g} times the batch"
    gain = found.baseline_step_time_s / found.step_time_s
    lines = [
        f"Predicted on {where}: {spell_rate(found.samples_per_s)} samples/s "
        f"({spell_rate(found.low)} … {spell_rate(found.high)})",
        f"  step      {found.step_time_s * 1e3:.1f} ms; your settings {found.baseline_step_time_s * 1e3:.1f} ms "
        f"({(gain - 1) * 100:+.1f} %)",
        f"  strategy  {spell_changes(found.changes)}",
        f"  scaling   {spell_share(found.scaling_efficiency)} of what it would be without communication",
    ]
    if found.caveat:
        lines.append(f"  note      {found.caveat}")
    return "\n".join(lines)
