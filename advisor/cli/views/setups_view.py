"""Setups of parameter servers, and of none, side by side: what a step is predicted to take under each."""

from collections.abc import Sequence

from advisor.answers.wording import EFFECT_WORDS
from advisor.protocol.answers.forecast import SetupForecast
from advisor.protocol.gains import spell_share
from advisor.protocol.kinds import Effect
from advisor.protocol.nodes.cluster import spell_memory
from advisor.protocol.training.parameter_servers import Architecture, Mode, ServerSetup, TableKind

_HEAD = ("setup", "placement", "fullest", "a node holds", "step")


def render_setups(setups: Sequence[SetupForecast], today: str = "today") -> str:
    """Return a table as plain text; `today` is what the setup is called that others are held against."""
    before = next(told.step_time_s for told in setups if not told.changes)
    rows = [(*_HEAD, f"against {today}", "")]
    for told in setups:
        rows.append(
            (
                _name(told.setup),
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


def _name(setup: ServerSetup) -> str:
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
