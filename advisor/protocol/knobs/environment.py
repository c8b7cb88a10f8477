"""The knobs that live in the environment of the launched ranks: each value costs a launch.

NCCL's are an allow-list: what its documentation offers for tuning. What it keeps for debugging stands among the carried
knobs, with the reason.
"""

from advisor.protocol.knobs.applicability import cuda_needed, nccl_needed, nccl_sockets_needed
from advisor.protocol.knobs.knob import Effect, Knob, KnobContext, Part, Place, Rule, Scale, Switch


def _network_needed(context: KnobContext) -> str | None:
    if sentence := nccl_needed(context):
        return sentence
    return (
        None
        if context.several_nodes
        else "The job runs on one node, for which NCCL knows the best sizes itself."
    )


E = Place.ENVIRONMENT
_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"

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
        name="NCCL_MIN_CTAS", place=E, part=Part.COMMUNICATION,
        default=1, low=1, high=32, scale=Scale.LOG, unit="blocks",
        effect=Effect.EXACT, switch=Switch.COLD,
        meaning="Fewest thread blocks (channels) of an NCCL communicator: more of them take more of the GPU.",
        realised="Environment of the launched ranks. NCCL 2.17 and later (torch 2.1 has 2.18).",
        unavailable_because=_network_needed,
        rule=lambda _: (Rule(8, "Between nodes NCCL makes few channels by itself; more of them share the work."),),
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
