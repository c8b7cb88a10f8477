"""The knobs that change the optimisation itself."""

from advisor.protocol.applicability import idle_unless, several_ranks_needed
from advisor.protocol.knobs import Effect, Knob, KnobContext, Part, Place, Rule, Scale, Switch


def _local_sgd_unavailable(context: KnobContext) -> str | None:
    return several_ranks_needed(context, "localsgd")


def _local_sgd_rule(_: KnobContext) -> tuple[Rule, ...]:
    return (
        Rule(4, "k = 4 kept the accuracy within 0.3 points in the documents' ResNet-50 table."),
        Rule(2, "The smallest interval that saves communication."),
    )


S = Place.STRATEGY

TRAINING: tuple[Knob, ...] = (
    Knob(
        name="localsgd", place=S, part=Part.COMMUNICATION, default=False, effect=Effect.CONVERGENCE, switch=Switch.HOT,
        meaning="Local SGD: step without synchronising, average the parameters every k steps.",
        realised="Unsynchronised DDP steps and parameter averaging.", paddle_field="localsgd",
        unavailable_because=_local_sgd_unavailable,
        rule=lambda _: (Rule(True, "Communicates once in k steps."),),
    ),
    Knob(
        name="localsgd_k_steps", place=S, part=Part.COMMUNICATION,
        default=1, low=1, high=16, scale=Scale.LOG, unit="steps",
        effect=Effect.CONVERGENCE, switch=Switch.HOT, needs="localsgd", grid=lambda _: (2, 4, 8),
        meaning="Steps between two parameter averagings.",
        realised="The averaging interval.", paddle_field="localsgd_configs.k_steps",
        unavailable_because=_local_sgd_unavailable, rule=_local_sgd_rule,
        inactive_because=idle_unless("localsgd", "Local SGD is off."),
    ),
    Knob(
        name="localsgd_begin_step", place=S, part=Part.COMMUNICATION,
        default=1, low=1, high=1_000_000, scale=Scale.LOG, unit="steps",
        effect=Effect.CONVERGENCE, switch=Switch.HOT,
        meaning="Post-local SGD: synchronise every step until this one (documents: the first learning-rate drop).",
        realised="Synchronised steps before local ones begin; never searched, because its value lies in the "
        "course of the whole training, which a short trial does not see.",
        paddle_field="localsgd_configs.begin_step",
        unavailable_because=lambda _: "Its value depends on the learning-rate schedule of the whole training, "
        "which a short trial does not see: set it by hand.",
        inactive_because=idle_unless("localsgd", "Local SGD is off."),
    ),
)  # fmt: skip
