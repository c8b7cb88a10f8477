"""`advisor predict`: what a tuned job would gain on more nodes, over other links, with another batch."""

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from advisor.answers.wording import EFFECT_WORDS, spell_bits, spell_changes
from advisor.cli.commands.answers.server_figures import predict_from_figures
from advisor.cli.connection import look_at, resolve_job
from advisor.cli.options import JsonOption, MaybeJobArgument, screen_of
from advisor.protocol.answers.forecast import Forecast, SetupForecast
from advisor.protocol.gains import spell_gain, spell_rate, spell_share
from advisor.protocol.kinds import Effect
from advisor.protocol.nodes.cluster import spell_memory
from advisor.protocol.training.parameter_servers import Architecture, Mode, ServerSetup, TableKind

FIGURES = "Parameter servers before anything was measured"
"""Panel of the help."""
_HEAD = ("setup", "placement", "fullest", "a node holds", "step")


def predict(
    context: typer.Context,
    job: MaybeJobArgument = None,
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
    variables: Annotated[
        str | None,
        typer.Option(
            metavar="SHAPES",
            help="Without a job: shapes of the dense variables, e.g. 256x1024,bias=1024, or @FILE.",
            rich_help_panel=FIGURES,
        ),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(metavar="ROWSxWIDTH", help="The embedding table, if any.", rich_help_panel=FIGURES),
    ] = None,
    ids: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rows of the table that a trainer looks up in a step.", rich_help_panel=FIGURES
        ),
    ] = None,
    trainers: Annotated[
        int | None,
        typer.Option(
            min=1, max=4096, help="Trainers on all nodes.", show_default="one a node", rich_help_panel=FIGURES
        ),
    ] = None,
    compute: Annotated[
        float,
        typer.Option(
            min=0.0, metavar="SECONDS", help="What a trainer computes in a step.", rich_help_panel=FIGURES
        ),
    ] = 0.0,
    memory: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            metavar="GIB",
            help="Memory of a node, so that what does not fit is said.",
            show_default="any",
            rich_help_panel=FIGURES,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict throughput and the best strategy on another cluster or with another batch, from what a job measured.

    advisor predict last --nodes 8 --rate 25gbit

    The cost model is fitted to the job's own measurements. The band says how far they let it see: it is a prediction,
    and a job on those nodes is the proof.

    Of a training with parameter servers it says how many, where, and whether servers at all. That it also says before
    anything was measured, from figures:

    advisor predict --nodes 4 --rate 1gbit --variables 256x1024,1024,1024x256,256 --table 20000x32 --ids 256
    """
    screen = screen_of(context)
    if (job is None) == (variables is None):
        raise typer.BadParameter("Name a JOB that was measured, or give --variables of a model that was not.")
    if variables is not None:
        if batch is not None:
            raise typer.BadParameter(
                "--batch is a multiple of a measured batch: give --ids and --compute of yours."
            )
        setups, said = predict_from_figures(variables, table, ids, trainers, nodes, rate, compute, memory)
        if as_json:
            screen.print_json(setups)
        else:
            screen.print_text(f"{_render_setups(setups, 'one server')}\n\n{said}")
        return
    if table or ids or trainers or compute or memory:
        raise typer.BadParameter(
            "--table, --ids, --trainers, --compute and --memory go with --variables: a job told its own."
        )
    assert job is not None
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
    if found.setups:
        where += " with trainers"  # Servers that stand apart have further ones.
    if found.bits_per_s:
        where += f"{', links' if found.setups else ' with links'} of {spell_bits(found.bits_per_s)}"
    if found.batch != 1.0:
        where += f", {found.batch:g} times the batch"
    gain = found.baseline_step_time_s / found.step_time_s
    lines = [
        f"Predicted on {where}: {spell_rate(found.samples_per_s)} {found.rate_unit} "
        f"({spell_rate(found.low)} … {spell_rate(found.high)})",
        f"  step      {found.step_time_s * 1e3:.1f} ms; your settings {found.baseline_step_time_s * 1e3:.1f} ms "
        f"({spell_gain(gain)})",
        f"  strategy  {spell_changes(found.changes)}",
        f"  scaling   {spell_share(found.scaling_efficiency)} of what it would be without communication",
    ]
    if found.setups:
        lines += ["", _render_setups(found.setups), ""]
    if found.caveat:
        lines.append(f"  note      {found.caveat}")
    return "\n".join(lines)


def _render_setups(setups: Sequence[SetupForecast], today: str = "today") -> str:
    """Setups of parameter servers, and of none, side by side; `today` names the one that others are held to."""
    before = next(told.step_time_s for told in setups if not told.changes)
    rows = [(*_HEAD, f"against {today}", "")]
    for told in setups:
        rows.append(
            (
                _name_setup(told.setup),
                _describe_placement(told.setup),
                "" if told.largest_share is None else spell_share(told.largest_share),
                spell_memory(told.node_bytes),
                f"{told.step_time_s * 1e3:.1f} ms",
                f"{before / told.step_time_s:.2f} x" if told.changes else today,
                _say_caveat(told),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _name_setup(setup: ServerSetup) -> str:
    """`2 servers apart, every 4 steps, 16 bits`."""
    parts = [setup.describe()]
    if setup.architecture is Architecture.SERVERS and setup.mode is not Mode.SYNC:
        parts.append(f"every {setup.geo_k} steps" if setup.mode is Mode.GEO else "not waiting for each other")
    if setup.table is TableKind.DENSE:
        parts.append("table as a dense variable")
    if setup.reduce_in_node:
        parts.append("summed in nodes first")
    if setup.wire != 32:
        parts.append(f"{setup.wire} bits")
    return ", ".join(parts)


def _say_caveat(told: SetupForecast) -> str:
    if not told.fits:
        return "does not fit"
    return "" if told.effect is Effect.EXACT else EFFECT_WORDS[told.effect]


def _describe_placement(setup: ServerSetup) -> str:
    if setup.architecture is not Architecture.SERVERS or setup.servers < 2:
        return ""
    return f"{f'blocks of {setup.min_block:,}' if setup.min_block else 'whole'}, {setup.placement}"
