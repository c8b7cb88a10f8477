"""The knobs of sharded models (fully_shard): what each rank keeps of the parameters, and for how long."""

from advisor.protocol.knobs.applicability import refused
from advisor.protocol.knobs.knob import Effect, Knob, KnobContext, Part, Place, Rule, Switch


def _stage_unavailable(context: KnobContext) -> str | None:
    if not context.facts.sharding:
        return "The model is not sharded: every rank holds all parameters all the time."
    return refused(context, "sharding_stage")


SHARDING: tuple[Knob, ...] = (
    Knob(
        name="sharding_stage", place=Place.STRATEGY, part=Part.COMMUNICATION, default=3, low=2, high=3, unit="stage",
        effect=Effect.EXACT, switch=Switch.HOT,
        meaning="ZeRO's stage: 3 shards parameters again after the forward, 2 keeps them gathered until the backward.",
        realised="fully_shard's set_reshard_after_forward on the modules inside the outermost one.",
        unavailable_because=_stage_unavailable,
        rule=lambda _: (
            Rule(2, "Parameters are gathered once a step instead of twice; they stay in memory meanwhile."),
        ),
    ),
)  # fmt: skip
