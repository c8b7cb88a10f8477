"""The knobs that live in the environment of the launched ranks: each value costs a launch, unless it says otherwise.

NCCL's are an allow-list: what its documentation offers for tuning. What it keeps for debugging stands among the carried
knobs, with the reason.
"""

from collections.abc import Mapping

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect, Part, Place, Scale, Switch
from advisor.protocol.knobs.applicability import (
    cuda_needed,
    idle_under_local_sgd,
    nccl_needed,
    nccl_sockets_needed,
)
from advisor.protocol.knobs.knob import Knob, KnobContext, Rule


def _network_needed(context: KnobContext) -> str | None:
    if sentence := nccl_needed(context):
        return sentence
    return (
        None
        if context.several_nodes
        else "The job runs on one node, for which NCCL knows the best sizes itself."
    )


def _allreduce_unavailable(context: KnobContext) -> str | None:
    if context.facts.sharding:
        return "The model is sharded: it gathers parameters and scatters gradients."
    return nccl_needed(context)


def _sharded_needed(context: KnobContext) -> str | None:
    if not context.facts.sharding:
        return "The model is not sharded: its gradients go through allreduces."
    return nccl_needed(context)


def _tuner_rule(context: KnobContext) -> tuple[Rule, ...]:
    if context.facts.nodes > 2:
        return (
            Rule("tree/simple", "Over many nodes a tree has fewer hops than a ring."),
            Rule(_SMALL_IN_TREES, "Hops count for small buckets, bandwidth for large ones."),
        )
    return (Rule("ring/simple", "A ring sends every byte of a large message once over each link."),)


def _channels_idle(values: Mapping[str, Value]) -> str | None:
    chosen = [str(values.get(name, "")) for name in TUNER if name != "nccl_tuner_channels"]
    if any(choice.startswith(("ring", "tree")) for choice in chosen):
        return None
    return "No collective is given a ring or a tree, whose channels it sets."


E = Place.ENVIRONMENT
TUNER = ("nccl_tuner_allreduce", "nccl_tuner_all_gather", "nccl_tuner_reduce_scatter", "nccl_tuner_channels")
"""Knobs that NCCL takes from a tuner plugin, which the runtime builds and loads in the ranks."""
_PLUGIN = (
    "A tuner plugin, built by the node's C compiler when the ranks start (NCCL 2.22 and later); refused without a "
    "compiler. A tuner of the network's maker (AWS's, Google's) is asked before it, and stands for all else. Never "
    "LL128, which corrupts data on hardware without guarantees for it."
)
_SMALL_IN_TREES = "tree/simple@4194304+ring/simple"
"""Below 4 MiB a tree's fewer hops tell, above it a ring's bandwidth."""
_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
_OWN_COMMUNICATORS = (
    "Gradients go over communicators of their own, made with it (ProcessGroupNCCL.Options().config), where torch and "
    "the card's memory allow that; else the environment of the launched ranks, which is exported in either case. NCCL "
    "2.17 and later (torch 2.1 has 2.18)."
)

ENVIRONMENT: tuple[Knob, ...] = (
    Knob(
        name="NCCL_SOCKET_NTHREADS", place=E, part=Part.COMMUNICATION,
        default=1, low=1, high=8, scale=Scale.LOG, unit="threads",
        same_meaning=True,
        effect=Effect.EXACT, switch=Switch.COLD, meaning="CPU threads per NCCL connection on TCP networks.",
        realised="Environment of the launched ranks.",
        unavailable_because=nccl_sockets_needed,
        rule=lambda _: (Rule(4, "More threads fill a fast TCP network."),),
    ),
    Knob(
        name="NCCL_NSOCKS_PERTHREAD", place=E, part=Part.COMMUNICATION,
        default=1, low=1, high=8, scale=Scale.LOG, unit="sockets",
        same_meaning=True,
        effect=Effect.EXACT, switch=Switch.COLD, meaning="Sockets per NCCL thread on TCP networks.",
        realised="Environment of the launched ranks.",
        unavailable_because=nccl_sockets_needed,
        rule=lambda _: (Rule(4, "Several sockets fill a fast TCP network."),),
    ),
    Knob(
        name="NCCL_BUFFSIZE", place=E, part=Part.COMMUNICATION,
        default=2**22, low=2**20, high=2**26, scale=Scale.LOG, unit="bytes",
        effect=Effect.EXACT, switch=Switch.COLD, meaning="Buffer between each pair of GPUs that communicate.",
        realised="Environment of the launched ranks.",
        unavailable_because=_network_needed,
        rule=lambda _: (Rule(2**23, "A larger buffer keeps more data under way on a network with latency."),),
    ),
    Knob(
        name="NCCL_MIN_CTAS", place=E, part=Part.COMMUNICATION, variable="NCCL_MIN_CTAS",
        default=1, low=1, high=32, scale=Scale.LOG, unit="blocks",
        effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Fewest thread blocks (channels) of an NCCL communicator: more of them take more of the GPU.",
        realised=_OWN_COMMUNICATORS,
        unavailable_because=_network_needed, inactive_because=idle_under_local_sgd,
        rule=lambda _: (Rule(8, "Between nodes NCCL makes few channels by itself; more of them share the work."),),
    ),
    Knob(
        name="NCCL_MAX_CTAS", place=E, part=Part.COMMUNICATION, variable="NCCL_MAX_CTAS", minor=True,
        default=64, low=1, high=64, scale=Scale.LOG, unit="blocks",
        effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Most thread blocks (channels) of an NCCL communicator: fewer leave more of the GPU to the computation "
        "beside it.",
        realised=_OWN_COMMUNICATORS,
        unavailable_because=nccl_needed, inactive_because=idle_under_local_sgd,
        rule=lambda _: (Rule(8, "Communication that computation hides needs few channels; each takes an SM."),),
    ),
    Knob(
        name="NCCL_CGA_CLUSTER_SIZE", place=E, part=Part.COMMUNICATION, variable="NCCL_CGA_CLUSTER_SIZE", minor=True,
        default=4, low=0, high=8, unit="blocks", grid=lambda _: (0, 2, 4, 8),
        effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Thread blocks of an NCCL kernel that are launched together as one cluster; 0: none are. Compute "
        "capability 9.0 and later.",
        realised=_OWN_COMMUNICATORS,
        unavailable_because=nccl_needed, inactive_because=idle_under_local_sgd,
    ),
    Knob(
        name="NCCL_CTA_POLICY", place=E, part=Part.COMMUNICATION, minor=True,
        default=0, low=0, high=1, grid=lambda _: (0, 1),
        effect=Effect.EXACT, switch=Switch.COLD,
        meaning="What NCCL does with thread blocks: 0 the most bandwidth, 1 as few as a decent one takes, which leaves "
        "more of the GPU to the computation beside it.",
        realised="Environment of the launched ranks; NCCL 2.27 and later. 2, copying without thread blocks, needs "
        "buffers in symmetric windows, and no gradient lies in one by itself.",
        unavailable_because=nccl_needed, inactive_because=idle_under_local_sgd,
        rule=lambda _: (Rule(1, "Communication that computation hides needs few thread blocks."),),
    ),
    Knob(
        name="nccl_tuner_allreduce", title="NCCL's allreduce algorithm",
        place=E, part=Part.COMMUNICATION, variable="FLEET_NCCL_ALLREDUCE", minor=True,
        default="", choices=("", "ring/simple", "ring/ll", "tree/simple", "tree/ll", _SMALL_IN_TREES,
                             "nvls/simple", "nvlstree/simple"),
        effect=Effect.EXACT, switch=Switch.COLD,
        meaning="Algorithm and protocol of NCCL's allreduces of 64 KiB and more, perhaps one for each band of sizes; "
        "nothing: its own choice.",
        realised=_PLUGIN, unavailable_because=_allreduce_unavailable, rule=_tuner_rule,
        inactive_because=idle_under_local_sgd,
    ),
    Knob(
        name="nccl_tuner_all_gather", title="NCCL's all-gather algorithm",
        place=E, part=Part.COMMUNICATION, variable="FLEET_NCCL_ALLGATHER", minor=True,
        default="", choices=("", "ring/simple", "ring/ll", "nvls/simple", "pat/simple"),
        effect=Effect.EXACT, switch=Switch.COLD,
        meaning="Algorithm and protocol of NCCL's all-gathers of 64 KiB and more; nothing: its own choice.",
        realised=_PLUGIN, unavailable_because=_sharded_needed,
    ),
    Knob(
        name="nccl_tuner_reduce_scatter", title="NCCL's reduce-scatter algorithm",
        place=E, part=Part.COMMUNICATION, variable="FLEET_NCCL_REDUCESCATTER",
        minor=True, default="", choices=("", "ring/simple", "ring/ll", "nvls/simple", "pat/simple"),
        effect=Effect.EXACT, switch=Switch.COLD,
        meaning="Algorithm and protocol of NCCL's reduce-scatters of 64 KiB and more; nothing: its own choice.",
        realised=_PLUGIN, unavailable_because=_sharded_needed,
    ),
    Knob(
        name="nccl_tuner_channels", title="NCCL's channels",
        place=E, part=Part.COMMUNICATION, variable="FLEET_NCCL_CHANNELS", minor=True,
        default=0, low=0, high=32, grid=lambda _: (0, 2, 4, 8, 16, 32), unit="blocks",
        effect=Effect.EXACT, switch=Switch.COLD,
        meaning="Channels of the collectives that nccl_tuner_… gives a ring or a tree; 0: NCCL's own number.",
        realised=_PLUGIN, unavailable_because=nccl_needed, inactive_because=_channels_idle,
    ),
    Knob(
        name=_ALLOCATOR, place=E, part=Part.COMPUTATION, default="",
        choices=("", "expandable_segments:True", "max_split_size_mb:512"),
        effect=Effect.EXACT, switch=Switch.COLD,
        meaning="How torch's caching allocator keeps GPU memory; nothing: its own way.",
        realised="Environment of the launched ranks; left alone where the job sets it.",
        unavailable_because=cuda_needed("The caching allocator", _ALLOCATOR),
        rule=lambda _: (
            Rule("expandable_segments:True", "Segments that grow lose less memory: fewer waits for the driver."),
        ),
    ),
)  # fmt: skip
