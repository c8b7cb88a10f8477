"""What-ifs of an advice as its page shows them: predictions, kept apart from what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.dashboard import formats
from advisor.protocol.answers.advice import Forecast
from advisor.protocol.knobs.catalogue import CATALOGUE


@dataclass(frozen=True)
class WhatIf:
    """One row: another cluster, and what the cost model expects there."""

    cluster: str
    rate: str
    band: str
    gain: str
    scaling: str
    changes: str


def view_forecasts(forecasts: Sequence[Forecast]) -> tuple[WhatIf, ...]:
    """Build the rows."""
    return tuple(
        WhatIf(
            cluster=_name_cluster(found),
            rate=formats.rate(found.samples_per_s),
            band=f"{formats.rate(found.low)} … {formats.rate(found.high)}",
            gain=formats.gain(found.baseline_step_time_s / found.step_time_s),
            scaling=formats.percent(found.scaling_efficiency),
            changes=", ".join(
                f"{name} {formats.knob_value(value, CATALOGUE[name].unit if name in CATALOGUE else '')}".strip()
                for name, value in found.changes.items()
            )
            or "the script as it stands",
        )
        for found in forecasts
    )


def _name_cluster(found: Forecast) -> str:
    nodes = formats.plural(found.nodes, "node")
    if found.bits_per_s is None:
        return nodes
    unit, scale = ("Gbit/s", 1e9) if found.bits_per_s >= 1e9 else ("Mbit/s", 1e6)
    return f"{nodes}, links of {found.bits_per_s / scale:g} {unit}"
