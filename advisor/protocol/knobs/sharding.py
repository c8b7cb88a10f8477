"""The knobs of sharded models: what ranks keep of the parameters, and how they gather and reduce."""

from collections.abc import Callable, Mapping

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect, Part, Place, Switch
from advisor.protocol.knobs.applicability import nccl_needed, refused
from advisor.protocol.knobs.knob import Knob, KnobContext, Rule
from advisor.protocol.nodes.cluster import DeviceKind

NOT_SHARDED = "The model is not sharded: every rank holds all parameters all the time."
DEEPSPEED = "DeepSpeed"
"""What WorkloadFacts.sharding says of a script that trains through DeepSpeed's engine."""
_DEEPEST = 8
_USUAL_DEPTH = 4


def _unavailable(name: str) -> Callable[[KnobContext], str | None]:
    def unavailable_because(context: KnobContext) -> str | None:
        return refused(context, name) if context.facts.sharding else NOT_SHARDED

    return unavailable_because


def _unless_overlapping(name: str) -> Callable[[KnobContext], str | None]:
    def unavailable_because(context: KnobContext) -> str | None:
        if not context.facts.sharding:
            return NOT_SHARDED
        if sentence := refused(context, name):
            return sentence
        if context.facts.device is not DeviceKind.CUDA:
            return "On CPUs each collective is waited for: there is nothing to overlap."
        return None

    return unavailable_because


def _overlap_unavailable(context: KnobContext) -> str | None:
    if context.facts.sharding not in ("", DEEPSPEED):
        return f"{context.facts.sharding} reduces beside the backward always."
    return _unless_overlapping("sharding_overlap")(context)


def _memory_unavailable(context: KnobContext) -> str | None:
    if not context.facts.sharding:
        return NOT_SHARDED
    if sentence := nccl_needed(context):
        return f"{sentence} It has no memory of its own either."
    return refused(context, "sharding_group_memory")


def _gather_unavailable(context: KnobContext) -> str | None:
    facts = context.facts
    if not facts.sharding:
        return NOT_SHARDED
    if not context.several_nodes:
        return "The job runs on one node: gathering over fewer ranks would spare no network."
    if facts.local_world_size < 2:
        return "Each node holds one rank: there is no smaller group to gather in."
    if facts.shard_ranks <= facts.local_world_size:
        return "One copy of the parameters is sharded inside a node already."
    if facts.shard_ranks % facts.local_world_size:
        return f"{facts.shard_ranks} ranks hold the parameters, which whole nodes do not split."
    return refused(context, "sharding_gather_ranks")


def _gather_sizes(context: KnobContext) -> tuple[Value, ...]:
    return tuple(sorted({0, context.facts.local_world_size, int(context.baseline["sharding_gather_ranks"])}))


def _depths(name: str, least: int) -> Callable[[KnobContext], tuple[Value, ...]]:
    def list_depths(context: KnobContext) -> tuple[Value, ...]:
        return tuple(sorted({*range(least, _USUAL_DEPTH + 1), int(context.baseline[name])}))

    return list_depths


def _idle_while_kept(values: Mapping[str, Value]) -> str | None:
    if values.get("sharding_stage") == 2:
        return "Parameters stay gathered from the forward on (stage 2): nothing is gathered again."
    return None


S, C = Place.STRATEGY, Part.COMMUNICATION

SHARDING: tuple[Knob, ...] = (
    Knob(
        name="sharding_stage", title="ZeRO stage",
        place=S, part=C, default=3, low=2, high=3, unit="stage",
        effect=Effect.EXACT, switch=Switch.HOT,
        meaning="ZeRO's stage: 3 shards parameters again after the forward, 2 keeps them gathered until the "
        "backward, and a script must not read parameters between the two.",
        realised="fully_shard's set_reshard_after_forward on the modules inside the outermost one.",
        unavailable_because=_unavailable("sharding_stage"),
        rule=lambda _: (
            Rule(2, "Parameters are gathered once a step instead of twice; they stay in memory meanwhile."),
        ),
    ),
    Knob(
        name="sharding_gather_ranks", title="ranks that gather in the backward",
        place=S, part=C, default=0, low=0, high=1024, unit="ranks",
        effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Ranks that parameters are sharded over again after the forward, so that the backward gathers among "
        "those only; 0: all that hold one copy. Takes the memory of larger shares, and a script must not read "
        "parameters between the two.",
        realised="fully_shard's reshard_after_forward with a number, changed in place on the modules inside the "
        "outermost one.",
        unavailable_because=_gather_unavailable, inactive_because=_idle_while_kept, grid=_gather_sizes,
        rule=lambda context: (
            Rule(context.facts.local_world_size, "The backward gathers inside each node, not over the network."),
        ),
    ),
    Knob(
        name="sharding_forward_prefetch", title="modules gathered ahead (forward)",
        place=S, part=C, default=0, low=0, high=_DEEPEST, unit="modules",
        effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Modules whose parameters are gathered ahead in the forward, fewer where the memory ends; 0: each "
        "as its forward begins.",
        realised="fully_shard's set_modules_to_forward_prefetch, in the order of a forward that was seen.",
        unavailable_because=_unless_overlapping("sharding_forward_prefetch"),
        grid=_depths("sharding_forward_prefetch", 0),
        rule=lambda _: (
            Rule(2, "Two gathers under way hide behind a layer that one would outlast; they take their memory."),
            Rule(1, "The next gather is issued before the layer computes, not after."),
        ),
    ),
    Knob(
        name="sharding_backward_prefetch", title="modules gathered ahead (backward)",
        place=S, part=C, default=1, low=1, high=_DEEPEST, unit="modules",
        effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Modules whose parameters are gathered ahead in the backward, fewer where the memory ends; 1 is what "
        "fully_shard does unasked.",
        realised="fully_shard's set_modules_to_backward_prefetch, against the order of a forward that was seen.",
        unavailable_because=_unless_overlapping("sharding_backward_prefetch"),
        grid=_depths("sharding_backward_prefetch", 1), inactive_because=_idle_while_kept,
        rule=lambda _: (Rule(2, "Two gathers under way in the backward, where reductions compete with them."),),
    ),
    Knob(
        name="sharding_separate_reduction", title="separate reduce-scatter group",
        place=S, part=C, default=False,
        effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Reduce gradients over a communicator of their own, so that they and the gathers overlap.",
        realised="fully_shard's set_separate_reduce_scatter_group (torch 2.13); the communicator is made once.",
        unavailable_because=_unless_overlapping("sharding_separate_reduction"),
        rule=lambda _: (
            Rule(True, "One communicator runs gathers and reductions of a backward one after another."),
        ),
    ),
    Knob(
        name="sharding_reduce_buffers", title="reduce-scatter buffers",
        place=S, part=C, default=1, low=1, high=_DEEPEST, unit="buffers", minor=True,
        effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Reductions of gradients that may keep their buffers at once; each takes a module's gradients.",
        realised="fully_shard's set_reduce_scatter_max_input_buffers (torch 2.13), and the limit it came to.",
        unavailable_because=_unless_overlapping("sharding_reduce_buffers"),
        grid=_depths("sharding_reduce_buffers", 1),
        rule=lambda _: (Rule(2, "The backward need not wait for one reduction before it prepares the next."),),
    ),
    Knob(
        name="sharding_overlap", title="overlap_comm",
        place=S, part=C, default=False,
        effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Reduce gradients on a stream of their own while the backward goes on. Takes a second buffer of "
        "fuse_grad_size_in_MB.",
        realised="DeepSpeed's overlap_comm (ZeRO 1 and 2).",
        unavailable_because=_overlap_unavailable,
        rule=lambda _: (
            Rule(True, "Otherwise the backward waits for each bucket; in stage 1 no reduction begins before its end."),
        ),
    ),
    Knob(
        name="sharding_group_memory", title="memory of the process group",
        place=S, part=C, default=False, minor=True,
        effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Gather and reduce in memory of the communicator's own, which NCCL reads without a copy.",
        realised="fully_shard's set_allocate_memory_from_process_group_for_comm on every sharded module.",
        unavailable_because=_memory_unavailable,
        rule=lambda _: (Rule(True, "Registered memory saves NCCL a copy over NVLink and InfiniBand."),),
    ),
)  # fmt: skip
