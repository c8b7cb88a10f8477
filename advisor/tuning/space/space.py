"""Which knobs and values make sense for this workload on this cluster, and why not the others."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from advisor.protocol.answers.advice import DroppedKnob
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.expressions import holds, list_names
from advisor.protocol.gains import spell_share
from advisor.protocol.kinds import Allow, Effect, Part, Place, Switch
from advisor.protocol.knobs.applicability import idle_because
from advisor.protocol.knobs.knob import Knob, KnobContext, Rule
from advisor.protocol.knobs.reach import fit_values, list_constants, list_taken, out_of_reach_because
from advisor.protocol.knobs.strategy import Layout
from advisor.protocol.measured.trials import Block
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.protocol.training.workload import Workload, WorkloadFacts, WorkloadKind
from advisor.tuning.measure.phases import NEGLIGIBLE, exposed_share
from advisor.tuning.space.composition import Composer, list_facts, list_own_values

FROZEN = "Frozen by the job: it keeps the baseline's value."
NOT_ASKED_FOR = "Not among the knobs that this job asks for."
_MB = 2**20
_MOST_SIZES = 18
"""Bucket sizes that a grid has at most: halves from all gradients downwards, and the anchors."""
_BUCKET_SIZES = ("fuse_grad_size_in_MB", "last_comm_group_size_MB")
"""Knobs whose values from all gradients on make one bucket."""
_PARTS: Mapping[Part, str] = {
    Part.COMMUNICATION: "Exposed communication",
    Part.BUFFERS: "The broadcast of buffers",
    Part.COMPUTATION: "Computation",
    Part.OPTIMIZER: "The optimizer",
    Part.INPUT: "Waiting for data",
}


@dataclass(frozen=True)
class Dimension:
    """One knob of the space and the values worth trying, in order where order means something."""

    knob: Knob
    values: tuple[Value, ...]
    ordered: bool

    def index_of(self, value: Value) -> int:
        """Return the place of the value, or of the nearest one."""
        if value in self.values:
            return self.values.index(value)
        if not self.ordered:
            return 0
        wanted = math.log(max(float(value), 1e-9))
        return min(
            range(len(self.values)), key=lambda i: abs(math.log(max(float(self.values[i]), 1e-9)) - wanted)
        )


@dataclass(frozen=True)
class Space:
    """What is searched for a job."""

    context: KnobContext
    composer: Composer
    dimensions: tuple[Dimension, ...]
    """Hot knobs of the allowed rung: what the sampler varies (every knob where each strategy is a launch anyway)."""
    costly: tuple[Dimension, ...]
    """Cold and slow knobs of the allowed rung: tried on top of the best, because each value costs about a launch."""
    higher: tuple[Dimension, ...]
    """Knobs of the rungs above the allowed one: measured for the ladder only."""
    dropped: tuple[DroppedKnob, ...]
    shares: Mapping[Part, float] = field(default_factory=dict)
    """Each part's share of the baseline's step in the probe, where that could be measured."""

    @property
    def is_empty(self) -> bool:
        """Whether no knob of the allowed rung is left."""
        return not self.dimensions and not self.costly


def build_context(
    job: Job, facts: WorkloadFacts, computed: Mapping[str, Rule | str] | None = None
) -> KnobContext:
    """Return what the catalogue's predicates and rules of thumb ask for."""
    return KnobContext(
        facts=facts,
        cluster=job.cluster,
        baseline=list_own_values(job),
        catalogue=job.catalogue,
        refusals=job.refusals,
        computed={name: rule for name, rule in (computed or {}).items() if name not in job.spec.values},
    )


def build_space(
    job: Job, facts: WorkloadFacts, probe: Sequence[Block], computed: Mapping[str, Rule | str] | None = None
) -> Space:
    """Return the space; `probe` are the baseline's blocks, whose phases rule out what cannot matter.

    `computed` are rules for knobs whose values come from measurements: values that the job names come before them.
    """
    context = build_context(job, facts, computed)
    layout = Layout(world_size=facts.world_size, nodes=facts.nodes)
    broken = _find_broken(job, layout, context)
    workload = job.spec.workload
    taken = list_taken(workload)
    kept: list[Dimension] = []
    higher: list[Dimension] = []
    dropped: list[DroppedKnob] = []
    for knob in job.catalogue.values():
        reason = (
            out_of_reach_because(workload, knob, taken)
            or broken.get(knob.name)
            or _dropped_because(job, knob, context)
        )
        is_negligible = reason is None and (small := _cannot_matter(job, knob, context, probe)) is not None
        if is_negligible:
            reason = small
        if reason is None:
            values = _restrict(job, knob, fit_values(workload, knob, _values_of(knob, context)), context)
            differ = _merge_alike(knob, values, context)
            dimension = Dimension(knob, differ, _is_ordered(knob))
            if len(differ) < 2 and not (knob.needs and knob.name in job.spec.values):
                reason = "Only one value makes sense here."
                if len(values) > 1:
                    whole = _spell_bytes(facts.gradient_bytes)
                    reason = f"Every size puts all {whole} of gradients into one bucket."
            elif uncertain := _has_no_certificate(job, knob, probe):
                reason = uncertain
            elif knob.effect.rank > job.spec.allow.rank:
                higher.append(dimension)
                reason = _above_the_rung(knob, job.spec.allow)
            else:
                kept.append(dimension)
        if reason is not None:
            dropped.append(DroppedKnob(knob=knob.name, reason=reason, is_negligible=is_negligible))
    return Space(
        context=context,
        composer=Composer(
            catalogue=job.catalogue,
            own=list_own_values(job),
            layout=layout,
            local_world_size=facts.local_world_size,
            frozen=frozenset(job.spec.freeze),
            taken=taken,
            constants=_list_constants(job),
            require=tuple(text for text in workload.require if not set(list_names(text)) & broken.keys()),
            only={
                d.knob.name: frozenset(d.values) for d in (*kept, *higher) if d.knob.name in job.spec.values
            },
            gradient_bytes=facts.gradient_bytes,
        ),
        dimensions=tuple(d for d in kept if _is_searched(d, workload)),
        costly=tuple(d for d in kept if not _is_searched(d, workload)),
        higher=tuple(higher),
        dropped=tuple(dropped),
        shares=measure_shares(context, probe),
    )


def _list_constants(job: Job) -> dict[str, Value]:
    """What requirements may name of the command and of the nodes' devices."""
    devices = [device.memory_bytes for node in job.cluster.nodes for device in node.devices]
    return {
        **list_constants(job.spec.workload),
        "gpu_memory_gib": round(min(devices, default=0) / 2**30, 1),
    }


def _find_broken(job: Job, layout: Layout, context: KnobContext) -> dict[str, str]:
    """Own knobs whose requirement today's command breaks on these nodes, which only now are known, with a sentence."""
    known = {**_list_constants(job), **list_facts(layout), **context.baseline}
    return {
        name: f"Today's command breaks {text!r} on these nodes, so nothing can be held against it: correct one."
        for text in job.spec.workload.require
        if not holds(text, known)
        for name in list_names(text)
        if name in context.catalogue and context.catalogue[name].place is Place.OWN
    }


def _is_searched(dimension: Dimension, workload: Workload) -> bool:
    knob = dimension.knob
    return workload.switches_at_launch or knob.switch is Switch.HOT or knob.place is Place.OWN


def _dropped_because(job: Job, knob: Knob, context: KnobContext) -> str | None:
    spec = job.spec
    if knob.name in spec.freeze:
        return FROZEN
    if knob.name in context.refusals:
        return context.refusals[knob.name]
    # A command that takes a knob knows what it is for: the catalogue's predicates are about what a runtime sees.
    if spec.workload.kind is not WorkloadKind.COMMAND and (reason := idle_because(context, knob)):
        return reason
    activator = knob.needs
    if activator and activator in spec.freeze and not context.baseline[activator]:
        return f"It means nothing without {activator}, which the job freezes."
    if spec.knobs and knob.name not in spec.knobs and knob.place is not Place.OWN:
        return NOT_ASKED_FOR
    return None


def _cannot_matter(job: Job, knob: Knob, context: KnobContext, probe: Sequence[Block]) -> str | None:
    """Amdahl's gate. A knob that the job names is searched all the same."""
    if job.spec.knobs or knob.name in job.spec.values:
        return None
    share = measure_shares(context, probe).get(knob.part)
    if share is None or share >= NEGLIGIBLE:
        return None
    return (
        f"{_PARTS[knob.part]} is {spell_share(share, 1)} of the step: removing all of it could not bring 2 %."
    )


def measure_shares(context: KnobContext, probe: Sequence[Block]) -> dict[Part, float]:
    """Return each part's largest share of the step in the probe's blocks, 0 to 1; parts that were not timed are absent.

    Computation counts on CPUs only: elsewhere the knobs of computation act on more than the passes that are timed.
    """
    shares: dict[Part, float] = {}
    for block in probe:
        phases = block.result.phases if block.result else None
        total = phases.total_s() if phases else 0.0
        if phases is None or total <= 0:
            continue
        parts: dict[Part, float | None] = {
            Part.COMMUNICATION: exposed_share(phases),
            Part.BUFFERS: (phases.buffers_s + phases.wait_s) / total,
            Part.OPTIMIZER: phases.optimizer_s / total,
            Part.INPUT: phases.data_wait_s / total,
        }
        if context.facts.device is DeviceKind.CPU:
            parts[Part.COMPUTATION] = (phases.forward_s + phases.backward_s + phases.optimizer_s) / total
        for part, share in parts.items():
            if share is not None:
                shares[part] = max(share, shares.get(part, 0.0))
    return shares


def _restrict(job: Job, knob: Knob, values: Sequence[Value], context: KnobContext) -> tuple[Value, ...]:
    """Keep to the values that the job names and the baseline's; a knob that waits for its switch has none there."""
    if knob.name not in job.spec.values:
        return tuple(values)
    own = context.baseline[knob.name]
    idle = bool(knob.needs) and not context.baseline[knob.needs]
    wanted = dict.fromkeys((*job.spec.values[knob.name], *(() if idle else (own,))))
    ordered = sorted(wanted, key=float) if _is_ordered(knob) else list(wanted)
    return tuple(fit_values(job.spec.workload, knob, tuple(ordered)))


def _merge_alike(knob: Knob, values: tuple[Value, ...], context: KnobContext) -> tuple[Value, ...]:
    """Keep one of the bucket sizes that hold all gradients: the baseline's, else the least."""
    total = context.facts.gradient_bytes / _MB
    if knob.name not in _BUCKET_SIZES or not total:
        return values
    own = context.baseline[knob.name]
    whole = [value for value in values if float(value) >= total]
    kept = own if own in whole else next(iter(whole), None)
    return tuple(value for value in values if float(value) < total or value == kept)


def _spell_bytes(count: int) -> str:
    return f"{count / _MB:.3g} MB" if count >= _MB else f"{count / 1000:.3g} kB"


def _has_no_certificate(job: Job, knob: Knob, probe: Sequence[Block]) -> str | None:
    """Why no value of the knob can be certified to leave every bit; None where it can, or need not."""
    if job.spec.allow is not Allow.BITWISE:
        return None
    return knob.explain_no_certificate() or say_unrepeated(probe)


def say_unrepeated(probe: Sequence[Block]) -> str | None:
    """What the probe says of a script whose own settings, run twice, leave other bits; None where it says nothing."""
    return next((b.result.bits_differ for b in probe if b.result and b.result.bits_differ), None)


def _above_the_rung(knob: Knob, allowed: Allow) -> str:
    harm = "rounding" if knob.effect is Effect.NUMERIC else "the optimisation itself"
    if knob.orders_sums:
        harm = "the order in which gradients are added up, in 16 bits or by the script's own hook: each addition rounds"
    return (
        f"It changes {harm}, and the job allows {allowed.value} knobs only: "
        "measured for the ladder, not for the verdict."
    )


def _is_ordered(knob: Knob) -> bool:
    return knob.kind in (int, float)


def _values_of(knob: Knob, context: KnobContext) -> tuple[Value, ...]:
    if knob.grid is not None:
        return knob.grid(context)
    if knob.kind is bool:
        return (False, True)
    if knob.kind is str:
        return knob.choices
    if knob.unit == "MB" and knob.scale.value == "log":
        return _sizes(knob, context)
    if knob.name == "num_threads":
        return _thread_counts(knob, context)
    if knob.low is None or knob.high is None:
        return (knob.default,)
    if knob.scale.value == "log":
        return _powers(int(knob.low), int(knob.high), _anchors(knob, context))
    return tuple(range(int(knob.low), int(knob.high) + 1))


def _thread_counts(knob: Knob, context: KnobContext) -> tuple[Value, ...]:
    """Powers of two up to a rank's share of its node's CPUs, and the baseline's own: more would wait for each other."""
    cpus = min((node.cpu_count for node in context.cluster.nodes), default=1)
    most = max(1, min(256, cpus // max(1, context.facts.local_world_size)))
    return tuple(sorted({*_powers(1, most, _anchors(knob, context)), int(context.baseline[knob.name])}))


def _anchors(knob: Knob, context: KnobContext) -> set[Value]:
    """Values that belong in the grid whatever its step: the baseline's and the rules of thumb."""
    return {context.baseline[knob.name], *(rule.value for rule in knob.rule(context))}


def _powers(low: int, high: int, anchors: set[Value]) -> tuple[Value, ...]:
    values = {low * 2**i for i in range(64) if low * 2**i <= high}
    values |= {int(value) for value in anchors if low <= int(value) <= high}
    return tuple(sorted(values))


def _sizes(knob: Knob, context: KnobContext) -> tuple[Value, ...]:
    """Sizes from all gradients at once downwards, each half of the one before, with the anchors between them.

    The whole range in coarser steps where the gradients' bytes are unknown.
    """
    low, high = float(knob.low or 0.0625), float(knob.high or 1024.0)
    if context.facts.gradient_bytes:
        size, ratio = min(high, float(math.ceil(context.facts.gradient_bytes / _MB) + 1)), 2.0
    else:
        size, ratio = high, 4.0
    values: list[float] = []
    while size >= low and len(values) < 9:
        values.append(float(f"{size:.4g}") if size >= 1 else round(size, 4))
        size /= ratio
    for anchor in sorted(float(value) for value in _anchors(knob, context)):
        if low <= anchor <= max(values) and len(values) < _MOST_SIZES:
            values = [v for v in values if not 0.87 < v / anchor < 1.15] + [anchor]
    return tuple(sorted(set(values)))
