"""Which gradients travel together, planned: edges of buckets by dynamic programming over measured times.

A bucket of n bytes takes α + β·n on the link. It starts once its last gradient is ready and the bucket before it has
ended; what the last one takes beyond backward is exposed. With large buckets the link waits for gradients, with small
ones it pays α again and again. A list of sizes can be small where the link is idle and large where it is not.

α and β of an idle link are not those of a step, in which ranks compute beside their reductions: the factor between them
is found from the exposed time that the probe itself measured.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from advisor.protocol.base import Value
from advisor.protocol.knobs.knob import Rule
from advisor.protocol.measured.results import GradientTiming, LinkLevel, LinkTiming
from advisor.protocol.measured.trials import Block
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.protocol.training.workload import WorkloadFacts
from advisor.tuning.model.communication_schedule import GLOO_THREADS, find_timed, keeps_definition, list_caps
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
_STOLEN = 0.3
"""Share of its speed that backward loses on CPUs beside a reduction."""
_MOST_LOAD = 2.0
"""In a step a reduction takes that many times what it takes on an idle link at most, and its inverse at least."""
_HALVINGS = 30
_ROUNDS = 3
_DEFINED = (
    "DDP searches for unused parameters in every step and never deals its buckets anew: they stay in the order of "
    "definition, and a plan is for the order in which gradients become ready."
)
_FIRST_BYTES = MIB
"""DDP's usual first bucket."""


@dataclass(frozen=True)
class Link:
    """What an allreduce costs: seconds for each, and seconds for each byte."""

    alpha_s: float
    beta_s: float
    load: float = 1.0
    """Factor on both in a step: ranks compute beside their reductions, and copy into buckets and out of them."""
    stolen: float = 0.0
    """Share of backward's speed that is lost while a reduction is under way."""

    at_once: int = 1
    """Reductions under way at once: they share the link, and one's α passes beside another's bytes."""

    def end_next(self, ends: list[float], ready_s: float, size: float) -> float:
        """Return when a reduction of gradients that are ready then ends, and append it to the ends before it."""
        places = [0.0] * self.at_once + ends
        begun = max(ready_s, places[-self.at_once]) + self.load * self.alpha_s
        ends.append(max(begun, places[-1]) + self.load * self.beta_s * size)
        return ends[-1]

    def reduce_s(self, size: float) -> float:
        """Return the seconds of one reduction of that many bytes in a step."""
        return self.load * (self.alpha_s + self.beta_s * size)


@dataclass(frozen=True)
class Backward:
    """When gradients become ready with no reduction beside them."""

    edges: Array
    """Bytes before each gradient and of all: (gradients + 1,)."""
    ready: Array
    """Seconds after which the gradients before each edge are all ready: (gradients + 1,)."""


@dataclass(frozen=True)
class BucketPlan:
    """The planned buckets, and what the plan is expected to bring.

    Seconds of one step that reductions add to a backward without any: what they expose, and what they slow it down by.
    """

    sizes_mb: tuple[float, ...]
    """Caps bucket by bucket, in the order in which gradients become ready."""
    now_s: float
    """With the buckets as they are."""
    single_s: float
    """With the best single size."""
    single_mb: float
    """That size."""
    planned_s: float
    """With the plan."""


def propose_list(facts: WorkloadFacts, own: Mapping[str, Value], probe: Sequence[Block]) -> Rule | str:
    """Return the planned sizes as a rule of thumb, or a sentence why there are none."""
    if facts.world_size < 2 or facts.sharding:
        return "Its buckets are not DDP's, or hold nothing that is communicated."
    if keeps_definition(own, facts):
        return _DEFINED
    measured, timed = read_probe(probe, facts.dataloader is not None), find_timed(facts, probe)
    idle = fit_link(timed.links) if timed else None
    if measured is None or timed is None or idle is None:
        return "The probe did not time gradients and allreduces, from which a plan would be computed."
    caps = list_caps(own)
    idle = at_work(idle, facts.device, facts.backend)
    link = anchor_link(idle, timed.gradients, caps, measured.reduced_s)
    if link is None:
        return (
            f"By the allreduces that the probe timed its own buckets would expose "
            f"{_spell(expose(quieten(timed.gradients, idle, caps), idle, caps))} of a step, and they exposed "
            f"{_spell(measured.reduced_s or 0.0)}: no plan is computed from a model that is so far off."
        )
    plan = plan_buckets(timed.gradients, link, caps)
    if plan is None:
        return "There is one gradient: no bucket could be cut."
    singly = f"{_spell(plan.single_s)} with the best single size ({plan.single_mb:.3g} MB)"
    exposed = (
        f"Reductions add to backward: {_spell(plan.now_s)} as it is, {singly}, {_spell(plan.planned_s)} with"
    )
    if plan.single_s - plan.planned_s < LEAST_GAIN * measured.step_s:
        return (
            f"{exposed} a plan of {len(plan.sizes_mb)} sizes: less than {LEAST_GAIN:.0%} of a step to gain."
        )
    costs = f"an allreduce takes {_spell(link.alpha_s)} and {_spell(link.beta_s * MIB)} a MB"
    ready = f"gradients become ready over {_spell(timed.gradients[-1].ready_s)}"
    load = f"in a step {link.load:.2f} times that"
    because = f"Planned, as {costs} on an idle link, {load}, and {ready}. {exposed} these {len(plan.sizes_mb)} sizes."
    return Rule("+".join(f"{size:g}" for size in plan.sizes_mb), because)


def at_work(link: Link, device: DeviceKind, backend: str) -> Link:
    """Return the link beside a backward pass: what reductions take from it is known of CPUs only."""
    stolen = _STOLEN if device is DeviceKind.CPU else 0.0
    return replace(link, stolen=stolen, at_once=1 if "nccl" in backend else GLOO_THREADS)


def _spell(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def fit_link(links: Iterable[LinkTiming]) -> Link | None:
    """Return α and β of an allreduce between all ranks on an idle link; None where fewer than two sizes were timed.

    The largest size tells β: middle ones may fit into what a queue lets through at once, far faster than a step's
    bytes. The quickest of all tells α.
    """
    timed = [link for link in links if link.level is LinkLevel.WORLD and link.concurrent == 1]
    if len({link.bytes for link in timed}) < 2:
        return None
    largest = max(timed, key=lambda link: link.bytes)
    alpha = min(link.seconds for link in timed)
    return Link(alpha, max(0.0, largest.seconds - alpha) / largest.bytes)


def anchor_link(
    link: Link,
    gradients: Sequence[GradientTiming],
    now_bytes: Sequence[float],
    exposed_s: float | None,
) -> Link | None:
    """Return the link under which the buckets in force expose what was measured of them, in seconds.

    None where the load would be below half or above two: the model then misses something that it does not know. Where
    nothing was measured the idle link's own figures stand.
    """
    if exposed_s is None:
        return link
    edges, ready = _measure(gradients)
    cuts = _close(edges, now_bytes)

    def expose_own(load: float) -> float:
        return end_of(cuts, edges, ready, replace(link, load=load)) - float(ready[-1])

    low, high = 1.0 / _MOST_LOAD, _MOST_LOAD
    if not expose_own(low) <= exposed_s <= expose_own(high):
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if expose_own(middle) < exposed_s else (low, middle)
    return replace(link, load=high)


def quieten(gradients: Sequence[GradientTiming], link: Link, now_bytes: Sequence[float]) -> Backward:
    """Return when gradients become ready without reductions; they were timed beside those of the buckets in force."""
    edges, ready = _measure(gradients)
    busy, ends, end = np.zeros(len(ready)), list[float](), 0.0
    for start, stop in pairwise((0, *_close(edges, now_bytes))):
        begun = max(end, float(ready[stop]))
        end = link.end_next(ends, float(ready[stop]), float(edges[stop] - edges[start]))
        busy += np.clip(ready, begun, end) - begun
    return Backward(edges, ready - link.stolen * busy)


def plan_buckets(
    gradients: Sequence[GradientTiming], link: Link, now_bytes: Sequence[float]
) -> BucketPlan | None:
    """Return the plan that ends earliest; None where there is nothing to cut.

    `gradients` are in the order in which they become ready, `now_bytes` the caps in force, the last of which counts for
    all further buckets.
    """
    if len(gradients) < 2:
        return None
    backward, whole = quieten(gradients, link, now_bytes), float(sum(g.bytes for g in gradients))

    def add(caps: Sequence[float]) -> float:
        ready, end = _run(backward, link, caps)
        return max(end, float(ready[-1])) - float(backward.ready[-1])

    single = [
        (add((min(first, size), size)), size)
        for size in (whole / np.geomspace(1.0, MOST_GROUPS, _SIZES)).tolist()
        for first in (float(_FIRST_BYTES), whole)
    ]
    # What reductions take from backward moves the gradients that buckets are cut by: plan again by what a plan moved.
    planned: list[tuple[float, tuple[float, ...]]] = []
    ready = backward.ready
    for _ in range(_ROUNDS if link.stolen else 1):
        joined = _join(backward.edges, ready)
        # Of reductions at once α is waited for in part: plan as if in full, and as if not beside another's bytes.
        for is_hidden in (False, True)[: link.at_once]:
            cuts = joined[_cut(backward.edges[joined], ready[joined], link, is_hidden)].tolist()
            sizes = name_sizes(backward.edges, cuts)
            planned.append((add([size * MIB for size in sizes]), sizes))
        ready, _ = _run(backward, link, [size * MIB for size in min(planned)[1]])
    planned_s, sizes = min(planned)
    least_s = min(single)[0]
    enough = least_s + _TOLERANCE * float(backward.ready[-1])
    return BucketPlan(
        sizes_mb=sizes,
        now_s=add(now_bytes),
        single_s=least_s,
        single_mb=max(size for cost_s, size in single if cost_s <= enough) / MIB,
        planned_s=planned_s,
    )


def expose(backward: Backward, link: Link, caps: Sequence[float]) -> float:
    """Return what the reductions take beyond backward, in seconds, where DDP closes its buckets at so many bytes."""
    ready, end = _run(backward, link, caps)
    return end - float(ready[-1])


def _run(backward: Backward, link: Link, caps: Sequence[float]) -> tuple[Array, float]:
    """When the gradients before each edge are ready beside the reductions, and when the last of these ends."""
    edges, alone = backward.edges, backward.ready
    ready, now, end, ends = alone.copy(), 0.0, 0.0, list[float]()
    for start, stop in pairwise((0, *_close(edges, caps))):
        work, beside = alone[start + 1 : stop + 1] - alone[start], max(0.0, end - now)
        ready[start + 1 : stop + 1] = (
            now + work + np.minimum(link.stolen * beside, work * link.stolen / (1.0 - link.stolen))
        )
        now = float(ready[stop])
        end = link.end_next(ends, now, float(edges[stop] - edges[start]))
    return ready, end


def end_of(cuts: Sequence[int], edges: Array, ready: Array, link: Link) -> float:
    """Return when the last bucket ends. `edges` are bytes before each gradient and of all, `cuts` where buckets end."""
    ends: list[float] = []
    for start, stop in pairwise((0, *cuts)):
        link.end_next(ends, float(ready[stop]), float(edges[stop] - edges[start]))
    return ends[-1]


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


def _cut(edges: Array, ready: Array, link: Link, is_hidden: bool) -> list[int]:
    """The cuts, by dynamic programming: the earliest end of the first j gradients in k buckets, for k from 1 on.

    Of all numbers of buckets the least is taken that ends within the tolerance of the earliest.
    """
    count = len(edges) - 1
    latency = link.load * link.alpha_s
    waited, beside = (0.0, latency) if is_hidden else (latency, 0.0)
    costs = waited + link.load * link.beta_s * (edges[None, :] - edges[:, None])
    costs[np.tril_indices(count + 1)] = np.inf
    ends = np.full(count + 1, np.inf)
    ends[0] = 0.0
    found: list[float] = []
    before: list[Places] = []
    for _ in range(min(count, MOST_BUCKETS)):
        whole = np.maximum(ends[:, None], ready[None, :] + beside) + costs
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
