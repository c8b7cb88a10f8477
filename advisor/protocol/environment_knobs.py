"""The knobs that live in the environment of the launched ranks: each value costs a launch."""

from advisor.protocol.applicability import nccl_sockets_needed
from advisor.protocol.knobs import Effect, Knob, Part, Place, Rule, Scale, Switch

E = Place.ENVIRONMENT

ENVIRONMENT: tuple[Knob, ...] = (
    Knob(
        name="NCCL_SOCKET_NTHREADS", place=E, part=Part.COMMUNICATION,
        default=1, low=1, high=8, scale=Scale.LOG, unit="threads",
        effect=Effect.EXACT, switch=Switch.COLD, meaning="CPU threads per NCCL connection on TCP networks.",
        realised="Environment of the launched ranks.",
        unavailable_because=nccl_sockets_needed,
        rule=lambda _: (Rule(4, "More threads fill a fast TCP network."),),
    ),
    Knob(
        name="NCCL_NSOCKS_PERTHREAD", place=E, part=Part.COMMUNICATION,
        default=1, low=1, high=8, scale=Scale.LOG, unit="sockets",
        effect=Effect.EXACT, switch=Switch.COLD, meaning="Sockets per NCCL thread on TCP networks.",
        realised="Environment of the launched ranks.",
        unavailable_because=nccl_sockets_needed,
        rule=lambda _: (Rule(4, "Several sockets fill a fast TCP network."),),
    ),
)  # fmt: skip
