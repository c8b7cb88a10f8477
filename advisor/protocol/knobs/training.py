"""The knobs that change the optimisation itself, and mixed precision."""

from collections.abc import Callable, Mapping

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect, Part, Place, Scale, Switch
from advisor.protocol.knobs.applicability import (
    idle_under_local_sgd,
    idle_unless,
    refused,
    several_ranks_needed,
)
from advisor.protocol.knobs.knob import Knob, KnobContext, Rule
from advisor.protocol.nodes.cluster import DeviceKind

_SCHEDULED = (
    "Its value depends on the learning-rate schedule of the whole training, which a short trial does not see: set it "
    "by hand."
)


def _needs_ranks(name: str) -> Callable[[KnobContext], str | None]:
    return lambda context: several_ranks_needed(context, name)


def _interval_rule(_: KnobContext) -> tuple[Rule, ...]:
    return (
        Rule(4, "k = 4 kept the accuracy within 0.3 points in the documents' ResNet-50 table."),
        Rule(2, "The smallest interval that saves communication."),
    )


def _half_already(name: str) -> Callable[[KnobContext], str | None]:
    def unavailable_because(context: KnobContext) -> str | None:
        if context.facts.gradient_dtype in {"float16", "bfloat16"}:
            return f"The model trains in {context.facts.gradient_dtype} already."
        return refused(context, name)

    return unavailable_because


def _precision_grid(context: KnobContext) -> tuple[Value, ...]:
    # Processors compute in bf16 at best: fp16 is emulated there.
    return ("bf16", "fp16") if context.facts.device is DeviceKind.CUDA else ("bf16",)


def _precision_rule(context: KnobContext) -> tuple[Rule, ...]:
    if context.facts.device is not DeviceKind.CUDA:
        return ()
    return (Rule(True, "Tensor cores compute in 16 bits several times as fast, on half the bytes."),)


def _idle_without_fp16(values: Mapping[str, Value]) -> str | None:
    on = values.get("amp") and values.get("amp_dtype") == "fp16"
    return None if on else "Only amp in fp16 scales the loss."


_NO_TIME_IN_SCALES = (
    "It changes which small gradients survive, and no time: set it by hand where your model needs it."
)


def _compression_unavailable(context: KnobContext) -> str | None:
    if context.facts.sparse_gradients:
        return "Some gradients are sparse already, and compression is for dense ones."
    return several_ranks_needed(context, "dgc")


def _rank_idle(values: Mapping[str, Value]) -> str | None:
    return idle_under_local_sgd(values) if values.get("dgc") else "Gradient compression is off."


S = Place.STRATEGY

TRAINING: tuple[Knob, ...] = (
    Knob(
        name="localsgd", title="local SGD",
        place=S, part=Part.COMMUNICATION, default=False, effect=Effect.CONVERGENCE, switch=Switch.HOT,
        same_meaning=True,
        meaning="Local SGD: step without synchronising, average the parameters every k steps.",
        realised="Unsynchronised DDP steps and parameter averaging.", paddle_field="localsgd",
        unavailable_because=_needs_ranks("localsgd"),
        rule=lambda _: (Rule(True, "Communicates once in k steps."),),
    ),
    Knob(
        name="localsgd_k_steps", title="steps between averagings",
        place=S, part=Part.COMMUNICATION,
        default=1, low=1, high=16, scale=Scale.LOG, unit="steps",
        same_meaning=True,
        effect=Effect.CONVERGENCE, switch=Switch.HOT, needs="localsgd", grid=lambda _: (2, 4, 8, 16),
        meaning="Steps between two parameter averagings.",
        realised="The averaging interval.", paddle_field="localsgd_configs.k_steps",
        unavailable_because=_needs_ranks("localsgd"), rule=_interval_rule,
        inactive_because=idle_unless("localsgd", "Local SGD is off."),
    ),
    Knob(
        name="localsgd_begin_step", title="first local step",
        place=S, part=Part.COMMUNICATION,
        default=1, low=1, high=1_000_000, scale=Scale.LOG, unit="steps",
        timed_with="localsgd",
        effect=Effect.CONVERGENCE, switch=Switch.HOT,
        meaning="Post-local SGD: synchronise every step until this one; Lin et al. (arXiv 1808.07217) "
        "take the first drop of the learning rate.",
        realised="Synchronised steps before local ones begin; tried at one value for the ladder (post-local SGD), "
        "because the best one lies in the course of the whole training, which a short trial does not see.",
        paddle_field="localsgd_configs.begin_step",
        unavailable_because=lambda _: _SCHEDULED,
        inactive_because=idle_unless("localsgd", "Local SGD is off."),
    ),
    Knob(
        name="adaptive_localsgd", title="adaptive local SGD",
        place=S, part=Part.COMMUNICATION,
        default=False, effect=Effect.CONVERGENCE, switch=Switch.HOT,
        meaning="Local SGD whose interval follows loss and learning rate (at most 16).",
        realised="Local SGD with k = ⌈√(first rate / rate × loss / first loss) × initial k⌉ chosen at each averaging, "
        "first being the block's first step; Paddle has the initial k inside the root.",
        paddle_field="adaptive_localsgd", unavailable_because=_needs_ranks("adaptive_localsgd"),
        rule=lambda _: (Rule(True, "Beat every fixed k of equal accuracy in the documents' ResNet-50 table."),),
    ),
    Knob(
        name="adaptive_localsgd_init_k_steps", title="first averaging interval",
        place=S, part=Part.COMMUNICATION,
        default=1, low=1, high=16, scale=Scale.LOG, unit="steps",
        effect=Effect.CONVERGENCE, switch=Switch.HOT, needs="adaptive_localsgd", grid=lambda _: (2, 4, 8),
        meaning="First interval of adaptive local SGD.",
        realised="The first averaging interval, and the factor before the root.",
        paddle_field="adaptive_localsgd_configs.init_k_steps",
        unavailable_because=_needs_ranks("adaptive_localsgd"), rule=_interval_rule,
        inactive_because=idle_unless("adaptive_localsgd", "Adaptive local SGD is off."),
    ),
    Knob(
        name="adaptive_localsgd_begin_step", title="first adaptive local step",
        place=S, part=Part.COMMUNICATION,
        default=1, low=1, high=1_000_000, scale=Scale.LOG, unit="steps",
        timed_with="adaptive_localsgd",
        effect=Effect.CONVERGENCE, switch=Switch.HOT,
        meaning="Synchronise every step until this one.",
        realised="Synchronised steps before local ones begin; not searched: post-local SGD has a fixed interval.",
        paddle_field="adaptive_localsgd_configs.begin_step",
        unavailable_because=lambda _: _SCHEDULED,
        inactive_because=idle_unless("adaptive_localsgd", "Adaptive local SGD is off."),
    ),
    Knob(
        name="gradient_merge", title="gradient accumulation",
        place=S, default=False, effect=Effect.CONVERGENCE, switch=Switch.HOT,
        same_meaning=True,
        meaning="Add up the gradients of k steps before communicating and applying them: a k times larger batch.",
        realised="k - 1 of k steps neither reduce nor apply gradients; step() and zero_grad() are held back.",
        paddle_field="gradient_merge", unavailable_because=lambda context: refused(context, "gradient_merge"),
        rule=lambda _: (Rule(True, "Communicates and updates once in k steps."),),
    ),
    Knob(
        name="gradient_merge_k_steps", title="accumulated steps",
        place=S, default=1, low=1, high=64, scale=Scale.LOG, unit="steps",
        same_meaning=True,
        effect=Effect.CONVERGENCE, switch=Switch.HOT, needs="gradient_merge", grid=lambda _: (2, 4, 8),
        meaning="Steps per communication and update.",
        realised="The number of steps merged.", paddle_field="gradient_merge_configs.k_steps",
        unavailable_because=lambda context: refused(context, "gradient_merge"),
        rule=lambda _: (Rule(2, "The smallest merge: the batch grows least."),),
        inactive_because=idle_unless("gradient_merge", "Gradient merge is off."),
    ),
    Knob(
        name="gradient_merge_avg", title="average of accumulated gradients",
        place=S, default=True, effect=Effect.CONVERGENCE, switch=Switch.HOT,
        same_meaning=True, timed_with="gradient_merge",
        meaning="Average the merged gradients instead of adding them.",
        realised="Each merged loss counts 1/k; never searched, because it is a matter of the learning rate, not of "
        "speed.",
        paddle_field="gradient_merge_configs.avg",
        unavailable_because=lambda _: "It changes the size of an update and no time: set it with the learning rate.",
        inactive_because=idle_unless("gradient_merge", "Gradient merge is off."),
    ),
    Knob(
        name="amp", title="autocast",
        place=S, default=False, effect=Effect.NUMERIC, switch=Switch.HOT,
        same_meaning=True,
        meaning="Mixed precision: compute in 16 bits where that is safe.",
        realised="torch.autocast around the training forward, float32 outputs; fp16 with dynamic loss scaling.",
        paddle_field="amp", unavailable_because=_half_already("amp"), rule=_precision_rule,
    ),
    Knob(
        name="amp_dtype", title="type of autocast",
        place=S, minor=True,
        default="bf16", choices=("bf16", "fp16"), effect=Effect.NUMERIC, switch=Switch.HOT,
        needs="amp", grid=_precision_grid,
        same_meaning=True,
        meaning="The 16-bit type of amp: bf16 has float32's range, fp16 more digits and needs loss scaling.",
        realised="The type of autocast. Paddle's bf16 is use_pure_bf16, another mode.",
        unavailable_because=_half_already("amp_dtype"), inactive_because=idle_unless("amp", "Mixed precision is off."),
    ),
    Knob(
        name="amp_dynamic_loss_scaling", title="dynamic loss scaling",
        place=S, minor=True, default=True, effect=Effect.NUMERIC, switch=Switch.HOT,
        timed_with="amp",
        meaning="Dynamic loss scaling: the scale halves after an overflow and doubles after 2000 steps without one. "
        "Off is static loss scaling: it stays what it begins with.",
        realised="The scale of amp in fp16 stays where it begins; steps whose gradients overflow are still left out. "
        "Never searched, because it is a matter of the model, not of speed.",
        paddle_field="amp_configs.use_dynamic_loss_scaling",
        unavailable_because=lambda _: _NO_TIME_IN_SCALES, inactive_because=_idle_without_fp16,
    ),
    Knob(
        name="amp_init_loss_scaling", title="first loss scale",
        place=S, minor=True, default=32768.0, low=1.0, high=2.0**24, scale=Scale.LOG,
        timed_with="amp",
        effect=Effect.NUMERIC, switch=Switch.HOT,
        meaning="What the loss is multiplied by at first; a power of two, so that nothing is rounded.",
        realised="The first scale of amp in fp16; never searched, because it is a matter of the model, not of speed.",
        paddle_field="amp_configs.init_loss_scaling",
        unavailable_because=lambda _: _NO_TIME_IN_SCALES, inactive_because=_idle_without_fp16,
    ),
    Knob(
        name="dgc", title="PowerSGD compression",
        place=S, part=Part.COMMUNICATION, default=False, effect=Effect.CONVERGENCE, switch=Switch.HOT,
        meaning="Deep gradient compression: send only the largest gradients.",
        realised="In translation: torch's PowerSGD hook, which compresses by low rank, also with error feedback.",
        paddle_field="dgc", unavailable_because=_compression_unavailable,
        rule=lambda _: (Rule(True, "Sends a small part of each gradient, and the rest later."),),
        inactive_because=idle_under_local_sgd,
    ),
    Knob(
        name="dgc_rank", title="rank of PowerSGD",
        place=S, part=Part.COMMUNICATION, default=2, low=1, high=64, scale=Scale.LOG,
        effect=Effect.CONVERGENCE, switch=Switch.HOT, needs="dgc", grid=lambda _: (1, 2, 4),
        meaning="Rank that gradient matrices are compressed to; no field of Fleet's, whose measure is sparsity.",
        realised="PowerSGD's rank: a matrix of n × m numbers is sent as (n + m) × rank.",
        unavailable_because=_compression_unavailable, inactive_because=_rank_idle,
    ),
)  # fmt: skip
