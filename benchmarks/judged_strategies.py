"""What strategies are worth on a live testbed: some of a grid, raced against the baseline, launch after launch."""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean, variance
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
_RECORDED = 3
"""Strategies of the recording that are judged too: the best ones, which nobody may have found."""


@dataclass(frozen=True)
class Judged:
    """What the races after all ways have ended say of the strategies."""

    means: Mapping[Changes, float]
    """Mean ln(throughput / the baseline's), of every strategy that ran."""
    error: float
    """Standard error of the difference of two such means."""

    @property
    def close(self) -> float:
        """The largest regret that is close to the best."""
        return max(_CLOSE, self.error)

    def regret(self, changes: Mapping[str, Value]) -> float:
        """Return the share of the best strategy's throughput that these changes give away; 1 where they fail."""
        mean = self.means.get(Changes(changes))
        return 1.0 if mean is None else max(0.0, -math.expm1(mean - max(self.means.values())))


def judge(
    surface: RecordedSurface,
    held: Iterable[Mapping[str, Value]],
    testbed: Testbed,
    workload: str,
    passes: int,
) -> Judged:
    """Race every strategy that was ever held, and the best recorded ones, in as many launches as there are passes."""
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
                str(WORKLOADS / script), arguments, plan, testbed, ranks, list(wanted.values()), races, number
            )
            cells = add_pass(cells, races, hello, number)
    ratios = {
        Changes(cell["changes"]): [block["anchor_log_ratio"] for block in cell["blocks"]]
        for cell in cells["cells"]
        if cell["changes"] and cell["outcome"] == "finished"
    }
    spread = fmean(variance(found) for found in ratios.values() if len(found) > 1)
    means = {Changes({}): 0.0} | {changes: fmean(found) for changes, found in ratios.items()}
    return Judged(means, math.sqrt(2.0 * spread / passes))


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
