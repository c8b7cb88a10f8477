"""The communication knobs: buckets, communicators, levels, 16-bit reduction."""

import math
from collections.abc import Mapping

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect, Part, Place, Scale, Switch
from advisor.protocol.knobs.applicability import (
    idle_under_local_sgd,
    nccl_needed,
    refused,
    several_ranks_needed,
)
from advisor.protocol.knobs.knob import Knob, KnobContext, Rule

_MANY_TENSORS = 50
"""Parameter tensors from which their copies are worth a look: about the number of a ResNet-18."""
_MB = 2**20
_LARGEST_BUCKET_MB = 1024


def _fusion_unavailable(context: KnobContext) -> str | None:
    if context.facts.parameter_tensors < 2:
        return "The model has a single parameter tensor: there is nothing to fuse."
    return refused(context, "fuse_grad_size_in_MB")


def _fuse_size_rule(context: KnobContext) -> tuple[Rule, ...]:
    if not context.facts.gradient_bytes:
        return ()
    total_mb = context.facts.gradient_bytes / _MB
    all_told = f"the {total_mb:.3g} MB of gradients per step"
    rules: dict[int, Rule] = {}
    for size, because in (
        (total_mb / 10, f"About one tenth of {all_told}."),
        (total_mb / 3, "A third of the gradients: fewer, larger messages with some overlap left."),
        (math.ceil(total_mb) + 1, "All gradients in one message: the least latency, no overlap."),
    ):
        if size < 1:
            because = f"A bucket of 1 MB, Fleet's smallest, for {all_told}."
        elif size > _LARGEST_BUCKET_MB:
            because = (
                f"The largest bucket, {_LARGEST_BUCKET_MB:,} MB: {all_told} travel in the fewest messages."
            )
        value = max(1, min(_LARGEST_BUCKET_MB, round(size)))
        rules.setdefault(value, Rule(float(value), because))
    return tuple(rules.values())


def _batched_copy_rule(context: KnobContext) -> tuple[Rule, ...]:
    tensors = context.facts.parameter_tensors
    if tensors < _MANY_TENSORS or context.facts.ddp.gradient_as_bucket_view:
        return ()
    return (Rule(True, f"{tensors} gradients are copied into buckets one by one in each step."),)


def _search_unavailable(context: KnobContext) -> str | None:
    if not context.baseline["find_unused_parameters"]:
        return "DistributedDataParallel searches for no unused parameters in this script."
    return refused(context, "find_unused_parameters")


def _search_rule(_: KnobContext) -> tuple[Rule, ...]:
    return (Rule(False, "DDP searches each step's graph for unused parameters, and has never found any."),)


def _deferral_unavailable(context: KnobContext) -> str | None:
    if context.facts.exchanges_per_step == 0:
        return "How often gradients are exchanged in a step was not seen."
    if context.facts.exchanges_per_step == 1:
        return "Gradients are exchanged once in a step already: there is no exchange to leave out."
    return several_ranks_needed(context, "defer_gradient_sync")


def _deferral_rule(context: KnobContext) -> tuple[Rule, ...]:
    times = context.facts.exchanges_per_step
    if times < 2:
        return ()
    return (
        Rule(True, f"Gradients are exchanged {times} times a step, once for each accumulated micro-batch."),
    )


def _deferral_idle(values: Mapping[str, Value]) -> str | None:
    if values.get("gradient_merge"):
        return "Gradient merge leaves exchanges out by itself."
    return idle_under_local_sgd(values)


def _broadcast_unavailable(context: KnobContext) -> str | None:
    if not context.baseline["broadcast_buffers"]:
        return "DistributedDataParallel broadcasts no buffers in this script."
    return refused(context, "broadcast_buffers")


def _broadcast_rule(_: KnobContext) -> tuple[Rule, ...]:
    return (Rule(False, "DDP sends rank 0's buffers before every forward, and none of them ever changed."),)


def _layers_unavailable(context: KnobContext) -> str | None:
    if context.facts.layers == 1:
        return "All parameters are in one layer: there is nothing to group."
    return _fusion_unavailable(context) or refused(context, "fuse_grad_size_in_TFLOPS")


def _layer_counts(context: KnobContext) -> tuple[Value, ...]:
    """All layers together and ever fewer, with the documents' 20 and 50."""
    layers = int(context.baseline["fuse_grad_size_in_TFLOPS"])
    counts = {layers, *(math.ceil(layers / 2**i) for i in range(1, 6)), *(min(n, layers) for n in (20, 50))}
    return tuple(float(count) for count in sorted(counts))


def _layers_rule(context: KnobContext) -> tuple[Rule, ...]:
    layers = int(context.baseline["fuse_grad_size_in_TFLOPS"])
    if layers > 20:
        return (Rule(20.0, "The documents fuse the gradients of at most 20 layers."),)
    return (Rule(float(max(1, math.ceil(layers / 3))), "A third of the layers: some overlap is left."),)


def _layers_idle(values: Mapping[str, Value]) -> str | None:
    return _list_idle(values) or _sizes_idle(values)


def _list_idle(values: Mapping[str, Value]) -> str | None:
    if values.get("fuse_bn_act_ops") or values.get("fuse_elewise_add_act_ops"):
        return "A compiled model's gradients become ready graph by graph, not layer by layer."
    return _fusion_size_idle(values)


def _list_unavailable(context: KnobContext) -> str | None:
    computed = context.computed.get("bucket_cap_mb_list")
    unavailable = _fusion_unavailable(context) or refused(context, "bucket_cap_mb_list")
    return unavailable or (computed if isinstance(computed, str) else None)


def _list_rule(context: KnobContext) -> tuple[Rule, ...]:
    computed = context.computed.get("bucket_cap_mb_list")
    return (computed,) if isinstance(computed, Rule) else ()


def _sizes_idle(values: Mapping[str, Value]) -> str | None:
    if values.get("bucket_cap_mb_list"):
        return "bucket_cap_mb_list gives each bucket a size of its own."
    return _fusion_size_idle(values)


def _last_group_rule(context: KnobContext) -> tuple[Rule, ...]:
    because = "A small first bucket starts communicating early in the backward pass."
    if context.facts.keeps_buckets:
        because = "A small last bucket leaves little to reduce once the backward pass has ended."
    return (Rule(1.0, because),)


def _communicators_rule(context: KnobContext) -> tuple[Rule, ...]:
    if context.several_nodes:
        return (Rule(2, "Two communicators on several machines."),)
    return (Rule(1, "One communicator on one machine."),)


def _serial_unavailable(context: KnobContext) -> str | None:
    """Several communicators exclude it, so on NCCL it could only order what is in order."""
    if context.facts.backend == "nccl" and not context.baseline["sync_nccl_allreduce"]:
        return "One NCCL communicator runs its allreduces one after another by itself: there is nothing to switch on."
    return several_ranks_needed(context, "sync_nccl_allreduce")


def _hierarchical_unavailable(context: KnobContext) -> str | None:
    facts = context.facts
    if not context.several_nodes:
        return "Hierarchical allreduce needs several nodes; this job runs on one."
    if facts.local_world_size < 2:
        return "Each node holds one rank: there is no inner group to reduce in first."
    return refused(context, "use_hierarchical_allreduce")


def _hierarchical_rule(_: KnobContext) -> tuple[Rule, ...]:
    return (Rule(True, "Two levels send each node's gradients over the network once."),)


def _inner_rule(context: KnobContext) -> tuple[Rule, ...]:
    return (Rule(context.facts.local_world_size, "The inner group is the ranks of one node."),)


def _gloo_unavailable(context: KnobContext) -> str | None:
    if sentence := nccl_needed(context):
        return f"{sentence} Both levels go over it already."
    return _hierarchical_unavailable(context) or refused(context, "hierarchical_allreduce_gloo_between")


def _inner_sizes(context: KnobContext) -> tuple[Value, ...]:
    world = context.facts.world_size
    return tuple(n for n in range(2, min(64, world // 2) + 1) if world % n == 0)


def _half_unavailable(context: KnobContext) -> str | None:
    if context.facts.gradient_dtype in {"float16", "bfloat16"}:
        return f"The gradients are {context.facts.gradient_dtype} already."
    return several_ranks_needed(context, "fp16_allreduce")


def _idle_without_reduction(values: Mapping[str, Value]) -> str | None:
    if values.get("dgc"):
        return "Gradient compression reduces in its own way, so this has nothing to act on."
    return idle_under_local_sgd(values)


def _fusion_size_idle(values: Mapping[str, Value]) -> str | None:
    if not values.get("fuse_all_reduce_ops"):
        return "Fusion is off: every gradient travels alone."
    return idle_under_local_sgd(values)


def _inner_idle(values: Mapping[str, Value]) -> str | None:
    if not values.get("use_hierarchical_allreduce"):
        return "Hierarchical allreduce is off."
    return _idle_without_reduction(values)


def _half_dtype_idle(values: Mapping[str, Value]) -> str | None:
    if not values.get("fp16_allreduce"):
        return "16-bit gradient reduction is off."
    return _idle_without_reduction(values)


S = Place.STRATEGY

COMMUNICATION: tuple[Knob, ...] = (
    Knob(
        name="fuse_all_reduce_ops", title="gradient buckets",
        place=S, part=Part.COMMUNICATION,
        default=True, effect=Effect.EXACT, orders_sums=True, switch=Switch.HOT,
        same_meaning=True,
        meaning="Reduce gradients in fused buckets instead of one by one. Never covers sparse gradients.",
        realised="DDP's buckets; off = one bucket per parameter.",
        paddle_field="fuse_all_reduce_ops",
        unavailable_because=_fusion_unavailable, inactive_because=idle_under_local_sgd,
    ),
    Knob(
        name="fuse_grad_size_in_MB", title="bucket size",
        place=S, part=Part.COMMUNICATION,
        default=32.0, low=0.0625, high=float(_LARGEST_BUCKET_MB), scale=Scale.LOG, unit="MB",
        same_meaning=True, timed_with="fuse_all_reduce_ops",
        effect=Effect.EXACT, orders_sums=True, switch=Switch.HOT, meaning="Bytes per fused allreduce.",
        realised="DDP's bucket capacity, rebuilt in place; DeepSpeed's reduce_bucket_size (ZeRO 1 and 2); Paddle takes "
        "whole MB.",
        paddle_field="fuse_grad_size_in_MB",
        unavailable_because=_fusion_unavailable, rule=_fuse_size_rule, inactive_because=_sizes_idle,
    ),
    Knob(
        name="last_comm_group_size_MB", title="first bucket's size",
        place=S, part=Part.COMMUNICATION, minor=True,
        default=1.0, low=0.0625, high=1024.0, scale=Scale.LOG, unit="MB",
        same_meaning=True, timed_with="fuse_all_reduce_ops",
        effect=Effect.EXACT, orders_sums=True, switch=Switch.HOT,
        meaning="Size of the group that becomes ready first in the backward pass (the last layers').",
        realised="DDP's first bucket.", paddle_field="last_comm_group_size_MB",
        unavailable_because=_fusion_unavailable, rule=_last_group_rule, inactive_because=_sizes_idle,
    ),
    Knob(
        name="fuse_grad_size_in_TFLOPS", title="layers per bucket",
        place=S, part=Part.COMMUNICATION, minor=True,
        default=20.0, low=1.0, high=1000.0, scale=Scale.LOG, unit="layers", grid=_layer_counts,
        effect=Effect.EXACT, orders_sums=True, switch=Switch.HOT,
        meaning="Most layers per fused allreduce, despite its name.",
        realised="DDP's buckets get one size each, so that none holds more layers; torch 2.12 and later.",
        paddle_field="fuse_grad_size_in_TFLOPS",
        unavailable_because=_layers_unavailable, rule=_layers_rule, inactive_because=_layers_idle,
    ),
    Knob(
        name="bucket_cap_mb_list", title="bucket sizes, one by one",
        place=S, part=Part.COMMUNICATION,
        default="", form=r"([0-9]+(\.[0-9]+)?(\+[0-9]+(\.[0-9]+)?)*)?", unit="MB", timed_with="fuse_all_reduce_ops",
        effect=Effect.EXACT, orders_sums=True, switch=Switch.HOT,
        grid=lambda c: ("", *(rule.value for rule in _list_rule(c))),
        meaning="A size for each bucket, in the order in which gradients become ready; the last one is for all further "
        "buckets. Empty: one size for all.",
        realised="DDP's own list, its reducer rebuilt in place; torch 2.12 and later. Computed from when "
        "gradients become ready and from what an allreduce costs.",
        unavailable_because=_list_unavailable, rule=_list_rule, inactive_because=_list_idle,
    ),
    Knob(
        name="batched_grad_copy", title="one copy of a bucket's gradients",
        place=S, part=Part.COMMUNICATION, minor=True,
        default=False, effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Copy the gradients of a bucket together once the last one is there, not each one by itself.",
        realised="DDP's batched_grad_copy, its reducer rebuilt in place; torch 2.12 and later.",
        unavailable_because=lambda c: refused(c, "batched_grad_copy"),
        rule=_batched_copy_rule, inactive_because=_idle_without_reduction,
    ),
    Knob(
        name="find_unused_parameters", title="search for unused parameters",
        place=S, part=Part.COMMUNICATION, minor=True,
        default=False, effect=Effect.EXACT, orders_sums=True, switch=Switch.HOT,
        meaning="Search the graph of every step for parameters that get no gradient. Off is offered where no step seen "
        "had any.",
        realised="DDP's find_unused_parameters, its reducer rebuilt in place. While it is off, each backward pass is "
        "watched: a parameter without a gradient is handed over as the search would have done, and told.",
        unavailable_because=_search_unavailable,
        rule=_search_rule, inactive_because=_idle_without_reduction,
    ),
    Knob(
        name="broadcast_buffers", title="broadcast of buffers",
        place=S, part=Part.BUFFERS,
        default=True, effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Send rank 0's buffers to all ranks before every forward. Off is offered where no buffer changes while "
        "the model trains: batch norm's running statistics do.",
        realised="DDP's broadcast_buffers (forward_sync_buffers), set in place. That no bit of a buffer changes is "
        "asked over the first steps and over those without the broadcast, and ever more rarely in a real training.",
        unavailable_because=_broadcast_unavailable, rule=_broadcast_rule,
    ),
    Knob(
        name="defer_gradient_sync", title="one exchange for all accumulated micro-batches",
        place=S, part=Part.COMMUNICATION,
        default=False, effect=Effect.EXACT, orders_sums=True, switch=Switch.HOT,
        meaning="Of the micro-batches that a step accumulates exchange gradients after the last one only. The mean "
        "over ranks is that of the same gradients, added up in another order.",
        realised="DDP's no_sync() around all micro-batches but the last, learnt from the steps before; where a step "
        "comes sooner, DDP's exchange is made right before the optimizer, a scaler or torch's clipping reads "
        "gradients. Buffers are broadcast as before.",
        unavailable_because=_deferral_unavailable, rule=_deferral_rule, inactive_because=_deferral_idle,
    ),
    Knob(
        name="nccl_comm_num", title="process groups that reduce gradients",
        place=S, part=Part.COMMUNICATION,
        default=1, low=1, high=4, effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Number of communicators that gradients are spread over.",
        realised="A communication hook that spreads buckets over that many process groups.",
        paddle_field="nccl_comm_num",
        unavailable_because=lambda c: several_ranks_needed(c, "nccl_comm_num"),
        rule=_communicators_rule, inactive_because=_idle_without_reduction,
    ),
    Knob(
        name="sync_nccl_allreduce", title="one allreduce at a time",
        place=S, part=Part.COMMUNICATION,
        default=True, effect=Effect.EXACT, switch=Switch.HOT,
        timed_with="nccl_comm_num",
        meaning="Finish one fused allreduce before the next begins, instead of letting them overlap.",
        realised="A communication hook that runs buckets one after another.",
        paddle_field="sync_nccl_allreduce",
        unavailable_because=_serial_unavailable,
        inactive_because=_idle_without_reduction,
    ),
    Knob(
        name="use_hierarchical_allreduce", title="two-level allreduce",
        place=S, part=Part.COMMUNICATION,
        default=False, effect=Effect.EXACT, orders_sums=True, switch=Switch.HOT,
        meaning="Two-level allreduce: inside the group first, then between groups.",
        realised="A communication hook: reduce in the group, allreduce between groups, hand back.",
        paddle_field="use_hierarchical_allreduce",
        unavailable_because=_hierarchical_unavailable, rule=_hierarchical_rule,
        inactive_because=_idle_without_reduction,
    ),
    Knob(
        name="hierarchical_allreduce_inter_nranks", title="ranks of the lower level",
        place=S, part=Part.COMMUNICATION, minor=True,
        default=1, low=1, high=64, effect=Effect.EXACT, orders_sums=True, switch=Switch.HOT, unit="ranks",
        needs="use_hierarchical_allreduce", grid=_inner_sizes,
        meaning="Ranks in the lower-level group, normally the devices of one node.",
        realised="The inner group of the hierarchical hook.",
        paddle_field="hierarchical_allreduce_inter_nranks",
        unavailable_because=_hierarchical_unavailable, rule=_inner_rule, inactive_because=_inner_idle,
    ),
    Knob(
        name="hierarchical_allreduce_gloo_between", title="gloo between nodes",
        place=S, part=Part.COMMUNICATION, minor=True,
        default=False, effect=Effect.EXACT, orders_sums=True, switch=Switch.HOT, needs="use_hierarchical_allreduce",
        meaning="NCCL inside the group, gloo between groups: for networks that NCCL serves badly. No field of Fleet's, "
        "whose documents describe the pattern.",
        realised="The upper level's groups are gloo's, one bucket after another in a thread beside backward.",
        unavailable_because=_gloo_unavailable, inactive_because=_inner_idle,
    ),
    Knob(
        name="fp16_allreduce", title="16-bit gradient reduction",
        place=S, part=Part.COMMUNICATION,
        default=False, effect=Effect.NUMERIC, switch=Switch.HOT,
        same_meaning=True,
        meaning="Send gradients in 16 bits: half the bytes, rounded gradients.",
        realised="A compressing communication hook; where fully_shard shards, the format in which it "
        "reduces; micro-batches are added up in the script's own before that, as under DistributedDataParallel.",
        paddle_field="fp16_allreduce",
        unavailable_because=_half_unavailable,
        rule=lambda _: (Rule(True, "Halves the bytes on the wire where communication is exposed."),),
        inactive_because=_idle_without_reduction,
    ),
    Knob(
        name="fp16_allreduce_dtype", title="type of reduced gradients",
        place=S, part=Part.COMMUNICATION, minor=True,
        default="fp16", choices=("fp16", "bf16"), effect=Effect.NUMERIC, switch=Switch.HOT,
        needs="fp16_allreduce",
        same_meaning=True,
        meaning="The 16-bit type of fp16_allreduce: fp16 has more digits, bf16 more range.",
        realised="The type the hook compresses to, or the one that fully_shard reduces in. Paddle's is always fp16.",
        unavailable_because=_half_unavailable, inactive_because=_half_dtype_idle,
    ),
)  # fmt: skip
