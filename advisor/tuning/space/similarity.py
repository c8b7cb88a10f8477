"""How alike two jobs are, and which strategies of earlier jobs are worth trying for a new one."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from advisor.protocol.answers.advice import Advice, Verdict
from advisor.protocol.asked.jobs import Job
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import EarlierJob, EarlierLaunches
from advisor.protocol.nodes.cluster import Cluster

MOST_EARLIER = 3
"""Earlier jobs that a new one hears of at most."""
MOST_EARLIER_LAUNCHES = 8
"""Verdicts of earlier jobs whose launches are held against one another, the latest: machines change."""
LEAST_LIKENESS = 0.8
"""Likeness below which an earlier job tells nothing: half the bandwidth has 0.82, twice the nodes and ranks 0.74.
Of 200 pairs of simulated jobs of different kinds none has so much, and every job whose link and computation vary by a
third has more than 0.9 (benchmarks/transfer.py)."""

_MB = 2**20
_UNKNOWN = 1.0
"""Doublings that count where one of two jobs does not know a size: as far apart as half and whole."""
_SIZES = {
    "gradient_bytes": 0.20,
    "bits_per_s": 0.20,
    "nodes": 0.20,
    "world_size": 0.10,
    "layers": 0.10,
    "parameter_tensors": 0.05,
}
"""Cost of one doubling. Bytes, bandwidth and nodes set how long a reduction takes; layers and tensors its pieces."""
_NAMES = {"device_name": 0.20, "torch_version": 0.05}
"""Cost of another name: kernels differ between devices more than between releases of torch."""


@dataclass(frozen=True)
class Fingerprint:
    """What a strategy's worth depends on, as far as a job's facts and cluster tell."""

    kind: str
    """The workload's kind: pytorch, command, paddle."""
    backend: str
    device: str
    """cpu or cuda."""
    device_name: str
    torch_version: str
    """Major and minor version only."""
    gradient_bytes: float | None
    layers: float | None
    parameter_tensors: float | None
    world_size: float
    nodes: float
    bits_per_s: float | None
    """The slowest node's fastest link (a testbed's rate); None where no link is known."""


def take_fingerprint(job: Job) -> Fingerprint | None:
    """Return the job's fingerprint; None before the runtime has seen its script."""
    facts = job.facts
    if facts is None:
        return None
    return Fingerprint(
        kind=job.spec.workload.kind.value,
        backend=facts.backend,
        device=facts.device.value,
        device_name=facts.device_name,
        torch_version=".".join(facts.torch_version.split("+")[0].split(".")[:2]),
        gradient_bytes=facts.gradient_bytes or None,
        layers=facts.layers or None,
        parameter_tensors=facts.parameter_tensors or None,
        world_size=max(1, facts.world_size),
        nodes=max(1, facts.nodes),
        bits_per_s=_link_speed(job.cluster),
    )


def measure_likeness(one: Fingerprint, other: Fingerprint) -> float:
    """Return how alike two jobs are, from 0 to 1; 1 is the same workload on the same cluster.

    0 for another kind of workload, kind of device or backend: their strategies are not comparable. Otherwise
    exp(-sum of costs): for each size its cost times the doublings between the two, |log2(a / b)|; for each name its
    cost where the two differ. The likeness halves at a sum of 0.69: for example with 11 times the gradients, or with
    twice the nodes on twice the ranks and a quarter of the bandwidth. Links between nodes do not count on one node.
    """
    if (one.kind, one.device, one.backend) != (other.kind, other.device, other.backend):
        return 0.0
    cost = sum(weight * _doublings(one, other, name) for name, weight in _SIZES.items())
    cost += sum(weight for name, weight in _NAMES.items() if getattr(one, name) != getattr(other, name))
    return math.exp(-cost)


def choose_earlier(job: Job, finished: Iterable[tuple[Job, Advice]]) -> tuple[EarlierJob, ...]:
    """Return the best strategies of at most three finished jobs that are alike, most alike first.

    A job counts with the strategy that it advised, or with the fastest one that it confirmed on a rung that this job
    allows. Of equal strategies only that of the job that is most alike stays. Sentences about jobs of another owner
    hold numbers, never names. A job that holds one strategy against the script tries no others, and has none.
    """
    mine = take_fingerprint(job)
    if mine is None or job.spec.verify:
        return ()
    found: list[EarlierJob] = []
    for other, advice in finished:
        theirs = take_fingerprint(other)
        if other.id == job.id or theirs is None:
            continue
        likeness = measure_likeness(mine, theirs)
        confirmed = _best_confirmed(advice, job)
        if likeness < LEAST_LIKENESS or confirmed is None:
            continue
        changes, ratio = confirmed
        name = other.spec.name if other.owner == job.owner else ""
        found.append(
            EarlierJob(
                job_id=other.id,
                changes=changes,
                ratio=ratio,
                likeness=round(likeness, 3),
                because=_describe(mine, theirs, name),
            )
        )
    found.sort(key=lambda earlier: (-earlier.likeness, -earlier.ratio, earlier.job_id))
    chosen: list[EarlierJob] = []
    for earlier in found:
        if all(earlier.changes != other.changes for other in chosen):
            chosen.append(earlier)
    return tuple(chosen[:MOST_EARLIER])


def choose_earlier_launches(job: Job, finished: Iterable[tuple[Job, Advice]]) -> tuple[EarlierLaunches, ...]:
    """Return how the launches of the latest jobs differed whose verdicts were raced on the same nodes and devices.

    Where every strategy was a launch of its own, launches differ by more than in a race, and say nothing of one.
    """
    facts, nodes = job.facts, {node.hostname for node in job.cluster.nodes}
    if facts is None:
        return ()
    return tuple(
        EarlierLaunches(
            job_id=other.id, ratios=tuple((told.log_ratio, told.error) for told in advice.launches)
        )
        for other, advice in finished
        if len(advice.launches) > 1
        and other.facts is not None
        and (other.facts.device, other.facts.backend) == (facts.device, facts.backend)
        and {node.hostname for node in other.cluster.nodes} == nodes
        and other.spec.workload.switches_at_launch == job.spec.workload.switches_at_launch
        and not other.spec.catalogue.keep_cold(advice.candidate)
    )[:MOST_EARLIER_LAUNCHES]


def _best_confirmed(advice: Advice, job: Job) -> tuple[Changes, float] | None:
    """The fastest strategy that the advice confirmed as a gain, on a rung that is allowed here."""
    confirmed: list[tuple[float, Changes]] = []
    if advice.verdict is Verdict.CHANGE and advice.gain is not None:
        confirmed.append((advice.gain.low, advice.changes))
    confirmed += [
        (rung.gain.low, rung.changes)
        for rung in advice.ladder
        if rung.gain is not None and rung.gain.low > 1.0 and rung.admitted
    ]
    usable = [
        (ratio, changes)
        for ratio, changes in confirmed
        if changes
        and changes.keys() <= job.catalogue.keys()
        and job.catalogue.effect_of(changes).rank <= job.spec.allow.rank
    ]
    if not usable:
        return None
    ratio, changes = max(usable, key=lambda pair: pair[0])
    return changes, ratio


def _link_speed(cluster: Cluster) -> float | None:
    speeds: list[int] = []
    for node in cluster.nodes:
        if node.testbed is not None:
            speeds.append(node.testbed.bits_per_s)
        elif known := [link.bits_per_second for link in node.links if link.bits_per_second]:
            speeds.append(max(known))
    return float(min(speeds)) if speeds else None


def _doublings(one: Fingerprint, other: Fingerprint, name: str) -> float:
    if name == "bits_per_s" and one.nodes == other.nodes == 1:
        return 0.0
    a, b = getattr(one, name), getattr(other, name)
    if a is None or b is None:
        return 0.0 if a is b else _UNKNOWN
    return abs(math.log2(a / b))


def _describe(mine: Fingerprint, theirs: Fingerprint, name: str) -> str:
    """What is alike and what differs, as a phrase: `the same gradients (98 MiB) and 2 nodes; 1 Gbit/s, not 0.3`."""
    told: dict[str, Callable[[Fingerprint], str]] = {
        "gradient_bytes": lambda f: f"{(f.gradient_bytes or 0) / _MB:.4g} MiB of gradients",
        "layers": lambda f: f"{f.layers or 0:g} layers",
        "world_size": lambda f: f"{f.world_size:g} ranks",
        "nodes": lambda f: f"{f.nodes:g} node{'s' if f.nodes != 1 else ''}",
        "bits_per_s": lambda f: f"{(f.bits_per_s or 0) / 1e9:.4g} Gbit/s",
        "device_name": lambda f: f.device_name or "an unnamed device",
        "torch_version": lambda f: f"torch {f.torch_version or 'unknown'}",
    }
    same, differs = [], []
    for field, spell in told.items():
        a, b = getattr(mine, field), getattr(theirs, field)
        if a == b:
            if a and not (field == "bits_per_s" and mine.nodes == 1):
                same.append(spell(theirs))
        elif not (field == "bits_per_s" and mine.nodes == theirs.nodes == 1):
            unknown = a is None or b is None
            differs.append(
                f"{spell(theirs) if b else 'unknown'} there, {spell(mine) if a else 'unknown'} here"
                if unknown or isinstance(a, str)
                else f"{spell(theirs)} instead of {spell(mine)}"
            )
    parts = [f"the same {', '.join(same)}" if same else "", "; ".join(differs)]
    return (f"{name}: " if name else "") + "; ".join(part for part in parts if part)
