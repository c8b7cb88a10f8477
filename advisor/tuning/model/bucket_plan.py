"""Which gradients travel together, planned: edges of buckets by dynamic programming over measured times.

A bucket of n bytes takes α + β·n on the link. It starts once its last gradient is ready and the bucket before it has
ended; what the last one takes beyond backward is exposed. With large buckets the link waits for gradients, with small
ones it pays α again and again. A list of sizes can be small where the link is idle and large where it is not.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from advisor.protocol.answers.advice import Timings
from advisor.protocol.base import Value
from advisor.protocol.knobs.knob import Rule
from advisor.protocol.measured.results import GradientTiming, LinkLevel, LinkTiming
from advisor.protocol.measured.trials import Block
from advisor.protocol.training.workload import WorkloadFacts
from advisor.tuning.model.communication_schedule import find_timed, list_caps
from advisor.tuning.model.step_model import read_probe
from advisor.tuning.model.timeline import MIB, Array

LEAST_GAIN = 0.01
"""Share of a step that a plan has to save beside the best single size, or it is not tried."""
Places = NDArray[np.int64]
MOST_GROUPS = 256
"""Neighbouring gradients are joined into at most that many groups: the work grows with their square."""
MOST_BUCKETS = 32
"""A plan has at most that many buckets."""
_TOLERANCE = 0.002
"""A plan of fewer buckets is taken where it ends later by that share of backward at most: α is not known better."""
_SIZES = 48
"""Single sizes that a plan is held against, in even ratios from a 256th of all bytes up to all of them."""
_FIRST_BYTES = MIB
"""DDP's usual first bucket."""


@dataclass(frozen=True)
class Link:
    """What an allreduce costs: seconds for each, and seconds for each byte."""

    alpha_s: float
    beta_s: float


@dataclass(frozen=True)
class BucketPlan:
    """The planned buckets, and what the plan is expected to bring; seconds of one step."""

    sizes_mb: tuple[float, ...]
    """Caps bucket by bucket, in the order in which gradients become ready."""
    now_s: float
    """Exposed time of the buckets as they are."""
    single_s: float
    """Exposed time of the best single size."""
    single_mb: float
    """That size."""
    planned_s: float
    """Exposed time of the plan."""


def propose_list(facts: WorkloadFacts, own: Mapping[str, Value], probe: Sequence[Block]) -> Rule | str:
    """Return the planned sizes as a rule of thumb, or a sentence why there are none."""
    if facts.world_size < 2 or facts.sharding:
        return "Its buckets are not DDP's, or hold nothing that is communicated."
    measured, timed = read_probe(probe, facts.dataloader is not None), find_timed(facts, probe)
    link = fit_link(timed.links) if timed else None
    if measured is None or timed is None or link is None:
        return "The probe did not time gradients and allreduces, from which a plan would be computed."
    plan = plan_buckets(timed.gradients, link, list_caps(own))
    if plan is None:
        return "There is one gradient: no bucket could be cut."
    singly = f"{_spell(plan.single_s)} with the best single size ({plan.single_mb:.3g} MB)"
    exposed = f"Exposed in a step: {_spell(plan.now_s)} as it is, {singly}, {_spell(plan.planned_s)} with"
    if plan.single_s - plan.planned_s < LEAST_GAIN * measured.step_s:
        return (
            f"{exposed} a plan of {len(plan.sizes_mb)} sizes: less than {LEAST_GAIN:.0%} of a step to gain."
        )
    costs = f"an allreduce takes {_spell(link.alpha_s)} and {_spell(link.beta_s * MIB)} a MB"
    ready = f"gradients become ready over {_spell(timed.gradients[-1].ready_s)}"
    because = f"Planned, as {costs} and {ready}. {exposed} these {len(plan.sizes_mb)} sizes."
    return Rule("+".join(f"{size:g}" for size in plan.sizes_mb), because)


def tell_timings(facts: WorkloadFacts, own: Mapping[str, Value], probe: Sequence[Block]) -> Timings | None:
    """Return what plans are computed from, for other tools; None where it was not measured."""
    timed = find_timed(facts, probe)
    link = fit_link(timed.links) if timed else None
    if timed is None or link is None:
        return None
    plan = plan_buckets(timed.gradients, link, list_caps(own))
    return Timings(
        gradient_bytes=tuple(g.bytes for g in timed.gradients),
        ready_s=tuple(g.ready_s for g in timed.gradients),
        alpha_s=link.alpha_s,
        beta_s_per_byte=link.beta_s,
        planned_mb=plan.sizes_mb if plan else (),
    )


def _spell(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def fit_link(links: Iterable[LinkTiming]) -> Link | None:
    """Return α and β of an allreduce between all ranks, each timed size counted by its relative error; None without."""
    timed = [link for link in links if link.level is LinkLevel.WORLD and link.concurrent == 1]
    if len({link.bytes for link in timed}) < 2:
        return None
    seconds = np.array([link.seconds for link in timed])
    sizes = np.array([float(link.bytes) for link in timed])
    table = np.stack([1.0 / seconds, sizes / seconds], axis=1)
    alpha, beta = np.linalg.lstsq(table, np.ones(len(timed)), rcond=None)[0]
    if alpha < 0 or beta < 0:  # noise: the smallest one is latency, the largest one is bytes
        alpha, beta = seconds[sizes.argmin()], seconds[sizes.argmax()] / sizes.max()
    return Link(float(alpha), float(beta))


def plan_buckets(
    gradients: Sequence[GradientTiming], link: Link, now_bytes: Sequence[float]
) -> BucketPlan | None:
    """Return the plan that ends earliest; None where there is nothing to cut.

    `gradients` are in the order in which they become ready, `now_bytes` the caps in force, the last of which counts for
    all further buckets.
    """
    if len(gradients) < 2:
        return None
    edges, ready = _measure(gradients)
    joined = _join(edges, ready)
    cuts = joined[_cut(edges[joined], ready[joined], link)].tolist()
    whole = float(edges[-1])
    single = [
        (_expose(edges, ready, link, (min(first, size), size)), size)
        for size in (whole / np.geomspace(1.0, MOST_GROUPS, _SIZES)).tolist()
        for first in (float(_FIRST_BYTES), whole)
    ]
    sizes = name_sizes(edges, cuts)
    return BucketPlan(
        sizes_mb=sizes,
        now_s=_expose(edges, ready, link, now_bytes),
        single_s=min(single)[0],
        single_mb=min(single)[1] / MIB,
        planned_s=_expose(edges, ready, link, [size * MIB for size in sizes]),
    )


def predict_exposed(gradients: Sequence[GradientTiming], link: Link, caps: Sequence[float]) -> float:
    """Return what the reductions take beyond backward, in seconds, where DDP closes its buckets at so many bytes."""
    return _expose(*_measure(gradients), link, caps)


def _expose(edges: Array, ready: Array, link: Link, caps: Sequence[float]) -> float:
    return end_of(_close(edges, caps), edges, ready, link) - float(ready[-1])


def end_of(cuts: Sequence[int], edges: Array, ready: Array, link: Link) -> float:
    """Return when the last bucket ends. `edges` are bytes before each gradient and of all, `cuts` where buckets end."""
    end = 0.0
    for start, stop in pairwise((0, *cuts)):
        end = max(end, float(ready[stop])) + link.alpha_s + link.beta_s * float(edges[stop] - edges[start])
    return end


def name_sizes(edges: Array, cuts: Sequence[int]) -> tuple[float, ...]:
    """Return the caps in MB with the fewest digits under which DDP closes its buckets at these cuts.

    A bucket closes once it holds its cap: anything above what it holds before its last gradient will do. The last cap
    counts for all further buckets: it holds whatever is left.
    """
    sizes = []
    for start, stop in pairwise((0, *cuts)):
        low, high = float(edges[stop - 1] - edges[start]), float(edges[stop] - edges[start])
        digits = 0
        while not low + 1 <= (size := round((low + 3 * high) / 4 / MIB, digits)) * MIB <= high:
            digits += 1
        sizes.append(size)
    return (*sizes[:-1], float(math.ceil(high / MIB)))


def _measure(gradients: Sequence[GradientTiming]) -> tuple[Array, Array]:
    """Bytes before each gradient and of all, and when the gradients before each edge are all ready."""
    edges = np.array([0.0, *accumulate(float(g.bytes) for g in gradients)])
    ready = np.array([0.0, *accumulate((g.ready_s for g in gradients), max)])
    return edges, ready


def _join(edges: Array, ready: Array) -> Places:
    """The edges that may be cut at: neighbours are joined while they are small and ready at nearly the same time."""
    count = len(edges) - 1
    if count <= MOST_GROUPS:
        return np.arange(count + 1)
    parts = MOST_GROUPS // 2
    steps = np.floor(edges * parts / edges[-1]) + np.floor(ready * parts / max(ready[-1], 1e-12))
    kept = np.flatnonzero(np.diff(steps) > 0) + 1
    return np.unique([0, *kept, count])


def _cut(edges: Array, ready: Array, link: Link) -> list[int]:
    """The cuts, by dynamic programming: the earliest end of the first j gradients in k buckets, for k from 1 on.

    Of all numbers of buckets the least is taken that ends within the tolerance of the earliest.
    """
    count = len(edges) - 1
    costs = link.alpha_s + link.beta_s * (edges[None, :] - edges[:, None])
    costs[np.tril_indices(count + 1)] = np.inf
    ends = np.full(count + 1, np.inf)
    ends[0] = 0.0
    found: list[float] = []
    before: list[Places] = []
    for _ in range(min(count, MOST_BUCKETS)):
        whole = np.maximum(ends[:, None], ready[None, :]) + costs
        before.append(whole.argmin(axis=0))
        ends = whole.min(axis=0)
        found.append(float(ends[-1]))
    enough = min(found) + _TOLERANCE * float(ready[-1])
    buckets = next(k for k, end in enumerate(found, start=1) if end <= enough)
    cuts = [count]
    for k in range(buckets - 1, 0, -1):
        cuts.append(int(before[k][cuts[-1]]))
    return cuts[::-1]


def _close(edges: Array, caps: Sequence[float]) -> list[int]:
    """Where DDP ends its buckets under these caps: once a bucket holds its own, the last one counting for the rest."""
    count, cuts = len(edges) - 1, [0]
    while cuts[-1] < count:
        cap = caps[min(len(cuts), len(caps)) - 1]
        full = int(np.searchsorted(edges, edges[cuts[-1]] + cap))
        cuts.append(min(count, max(cuts[-1] + 1, full)))
    return cuts[1:]
