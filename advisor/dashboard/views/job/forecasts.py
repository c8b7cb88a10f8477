"""What-ifs as their page asks for and shows them: predictions, kept apart from what was measured."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from advisor.dashboard import formats
from advisor.protocol.answers.forecast import Forecast
from advisor.protocol.nodes.testbed import read_rate

MOST_NODES = 4096
LEAST_BATCH, MOST_BATCH = 0.0625, 64.0
_LONGEST = 20


@dataclass(frozen=True)
class Cluster:
    """The cluster that the reader asks about, as typed; an empty field is as measured."""

    nodes: str = ""
    rate: str = ""
    batch: str = ""
    problems: Mapping[str, str] = field(default_factory=dict)
    """A sentence for each field that cannot be read."""

    @classmethod
    def read(cls, given: Mapping[str, str]) -> "Cluster":
        """Return what an address asks for, with what is wrong about it."""
        texts = {name: given.get(name, "").strip()[:_LONGEST] for name in ("nodes", "rate", "batch")}
        problems = {name: said for name, text in texts.items() if text and (said := _FAULTS[name](text))}
        return cls(**texts, problems=problems)

    @property
    def is_asked(self) -> bool:
        """Whether there is something to predict."""
        return bool(self.nodes or self.rate or self.batch) and not self.problems

    @property
    def words(self) -> tuple[int | None, str | None, float]:
        """Nodes, rate and batch for the cost model. Only of a cluster without problems."""
        return int(self.nodes) if self.nodes else None, self.rate or None, float(self.batch or 1)


def _doubt_nodes(text: str) -> str:
    fits = text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_NODES
    return "" if fits else f"A whole number from 1 to {MOST_NODES}."


def _doubt_rate(text: str) -> str:
    try:
        return "" if read_rate(text) > 0 else "Above 0, for example 25gbit."
    except ValueError:
        return "A number and kbit, mbit or gbit, for example 25gbit."


def _doubt_batch(text: str) -> str:
    try:
        fits = LEAST_BATCH <= float(text) <= MOST_BATCH
    except ValueError:
        fits = False
    return "" if fits else f"A number from {LEAST_BATCH} to {MOST_BATCH:g}: 2 is twice the measured batch."


_FAULTS: Mapping[str, Callable[[str], str]] = {
    "nodes": _doubt_nodes,
    "rate": _doubt_rate,
    "batch": _doubt_batch,
}


def name_cluster(found: Forecast) -> str:
    """Return which cluster a forecast is for: `8 nodes, links of 25 Gbit/s`."""
    name = formats.plural(found.nodes, "node")
    if found.bits_per_s is not None:
        unit, scale = ("Gbit/s", 1e9) if found.bits_per_s >= 1e9 else ("Mbit/s", 1e6)
        name += f", links of {found.bits_per_s / scale:g} {unit}"
    return f"{name}, {found.batch:g} × the batch" if found.batch != 1 else name
