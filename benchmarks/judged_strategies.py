"""What strategies are worth on a live testbed: some of a grid, raced against the baseline, launch after launch."""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Any

from record_surface import PLANS, WORKLOADS, add_pass, record_pass
from recorded_surface import RecordedSurface
from sessions import ROOT, Ranks

sys.path.insert(0, str(ROOT))

from advisor.local.testbed import build_testbed
from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.nodes.testbed import Testbed

_CLOSE = 0.02
_ARM_S = 2.4
_RECORDED = 3
"""Strategies of the recording that are judged too: the best ones, which nobody may have found."""


@dataclass(frozen=True)
class Judged:
    """What the races after all ways have ended say of the strategies."""

    ratios: Mapping[Changes, Sequence[float]]
    """ln(throughput / the baseline's) in each pass, of every strategy that ran in all of them; the baseline's are 0."""

    grid: frozenset[Changes]
    """The strategies that every way could choose."""

    @cached_property
    def best(self) -> Changes:
        """The strategy of the highest mean among those that every way could choose."""
        return max(self.grid & self.ratios.keys(), key=lambda changes: fmean(self.ratios[changes]))

    def regret(self, changes: Mapping[str, Value]) -> float:
        """Return the share of the best strategy's throughput that these changes give away; 1 where they fail.

        Below 0 where a way went beyond the grid and found a better one there.
        """
        behind = self._list_distances(changes)
        return -math.expm1(-fmean(behind)) if behind else 1.0

    def error(self, changes: Mapping[str, Value]) -> float:
        """Return the standard error of that regret, from pass to pass; 0 for the best and where the changes fail."""
        behind = self._list_distances(changes)
        return stdev(behind) / math.sqrt(len(behind)) if behind else 0.0

    def is_close(self, changes: Mapping[str, Value]) -> bool:
        """Whether the regret is at most 2 %, or at most its own error where the races cannot tell as little as that."""
        return self.regret(changes) <= max(_CLOSE, self.error(changes))

    def _list_distances(self, changes: Mapping[str, Value]) -> list[float]:
        """How far the strategy lies behind the best in each pass, in ln(throughput)."""
        own = self.ratios.get(Changes(changes), ())
        return [best - mine for best, mine in zip(self.ratios[self.best], own, strict=False)]


def judge(
    surface: RecordedSurface,
    held: Iterable[Mapping[str, Value]],
    testbed: Testbed,
    workload: str,
    passes: int,
) -> Judged:
    """Race every strategy that was ever held, and the best recorded ones, in as many launches as there are passes.

    A pass is one race of all of them, so that each distance between two is between neighbours in time.
    """
    recorded = sorted(surface.cells.values(), key=lambda cell: surface.regret(cell.changes))[:_RECORDED]
    wanted = {Changes(changes): dict(changes) for changes in held if changes}
    wanted |= {Changes(cell.changes): dict(cell.changes) for cell in recorded if cell.changes}
    plan = PLANS[workload]
    cells: dict[str, Any] = {"cells": []}
    script, *arguments = plan.words
    with testbed_ranks(testbed) as ranks:
        for number in range(passes):
            races: list[list[dict[str, Value]]] = []
            hello = record_pass(
                str(WORKLOADS / script), arguments, plan, testbed, ranks, list(wanted.values()), races, number,
                beside=len(wanted), arm_s=_ARM_S,
            )  # fmt: skip
            cells = add_pass(cells, races, hello, number)
    ratios = {
        Changes(cell["changes"]): [block["anchor_log_ratio"] for block in cell["blocks"]]
        for cell in cells["cells"]
        if cell["outcome"] == "finished" and len(cell["blocks"]) == passes
    }
    return Judged(ratios, frozenset(Changes(cell.changes) for cell in surface.cells.values()))


@contextmanager
def testbed_ranks(testbed: Testbed) -> Iterator[Ranks]:
    """The testbed as `run_session` wants it."""
    with build_testbed(testbed) as nodes:
        yield Ranks(
            nproc_per_node=1,
            node_prefixes=tuple(node.prefix for node in nodes),
            master_address=nodes[0].address,
            interface="eth0",
        )
