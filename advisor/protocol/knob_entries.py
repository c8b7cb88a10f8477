"""The catalogue's entries: the knobs of PaddlePaddle Fleet's DistributedStrategy and its surroundings.

Defaults and rules of thumb are those of the Fleet documents. `docs/knobs.md` is generated from this file.
"""

import math
from collections.abc import Callable, Mapping

from advisor.protocol.base import Value
from advisor.protocol.carried_knobs import CARRIED
from advisor.protocol.cluster import DeviceKind
from advisor.protocol.knobs import Effect, Knob, KnobContext, Place, Rule, Scale, Switch

_MB = 2**20


def _refused(context: KnobContext, name: str) -> str | None:
    return context.refusals.get(name)


# --- communication -----------------------------------------------------------------------------------


def _fusion_unavailable(context: KnobContext) -> str | None:
    if context.facts.parameter_tensors < 2:
        return "The model has a single parameter tensor: there is nothing to fuse."
    return _refused(context, "fuse_grad_size_in_MB")


def _fuse_size_rule(context: KnobContext) -> tuple[Rule, ...]:
    total_mb = context.facts.gradient_bytes / _MB
    tenth = max(1, min(256, round(total_mb / 10)))
    rules = [Rule(float(tenth), f"About one tenth of the {total_mb:.3g} MB of gradients per step.")]
    third = max(1, min(256, round(total_mb / 3)))
    if third != tenth:
        rules.append(
            Rule(float(third), "A third of the gradients: fewer, larger messages with some overlap left.")
        )
    whole = min(1024, math.ceil(total_mb) + 1)
    if whole not in {tenth, third}:
        rules.append(Rule(float(whole), "All gradients in one message: the least latency, no overlap."))
    return tuple(rules)


def _last_group_rule(_: KnobContext) -> tuple[Rule, ...]:
    return (Rule(1.0, "A small first bucket starts communicating early in the backward pass."),)


def _several_ranks_needed(context: KnobContext, name: str) -> str | None:
    if context.facts.world_size < 2:
        return "There is one rank: nothing is communicated."
    return _refused(context, name)


def _communicators_rule(context: KnobContext) -> tuple[Rule, ...]:
    if context.several_nodes:
        return (Rule(2, "Two communicators on several machines."),)
    return (Rule(1, "One communicator on one machine."),)


def _hierarchical_unavailable(context: KnobContext) -> str | None:
    facts = context.facts
    if not context.several_nodes:
        return "Hierarchical allreduce needs several nodes; this job runs on one."
    if facts.local_world_size < 2:
        return "Each node holds one rank: there is no inner group to reduce in first."
    return _refused(context, "use_hierarchical_allreduce")


def _hierarchical_rule(_: KnobContext) -> tuple[Rule, ...]:
    return (Rule(True, "Two levels send each node's gradients over the network once."),)


def _inner_rule(context: KnobContext) -> tuple[Rule, ...]:
    return (Rule(context.facts.local_world_size, "The inner group is the ranks of one node."),)


# --- threads, memory ---------------------------------------------------------------------------------


def _threads_unavailable(context: KnobContext) -> str | None:
    node_cpus = max((node.cpu_count for node in context.cluster.nodes), default=1)
    if node_cpus <= 1:
        return "A rank has one CPU: more threads cannot help."
    return _refused(context, "num_threads")


def _threads_rule(context: KnobContext) -> tuple[Rule, ...]:
    cpus = min((node.cpu_count for node in context.cluster.nodes), default=1)
    share = max(1, cpus // max(1, context.facts.local_world_size))
    rules = [Rule(share, f"The node's {cpus} CPUs shared by its {context.facts.local_world_size} ranks.")]
    if share != 1:
        rules.append(Rule(1, "One thread a rank leaves the cores to the other ranks."))
    return tuple(rules)


def _cuda_needed(what: str, name: str) -> Callable[[KnobContext], str | None]:
    def unavailable_because(context: KnobContext) -> str | None:
        if context.facts.device is not DeviceKind.CUDA:
            return f"{what} is a matter of GPUs; this job computes on CPUs."
        return _refused(context, name)

    return unavailable_because


def _nccl_needed(context: KnobContext) -> str | None:
    if context.facts.backend != "nccl":
        return f"The job communicates over {context.facts.backend}, which does not read NCCL's settings."
    return None


def _nccl_sockets_needed(context: KnobContext) -> str | None:
    if sentence := _nccl_needed(context):
        return sentence
    return None if context.several_nodes else "The job runs on one node: NCCL opens no sockets."


def _half_unavailable(context: KnobContext) -> str | None:
    if context.facts.gradient_dtype in {"float16", "bfloat16"}:
        return f"The gradients are {context.facts.gradient_dtype} already."
    return _several_ranks_needed(context, "fp16_allreduce")


def _local_sgd_unavailable(context: KnobContext) -> str | None:
    return _several_ranks_needed(context, "localsgd")


def _local_sgd_rule(_: KnobContext) -> tuple[Rule, ...]:
    return (
        Rule(4, "k = 4 kept the accuracy within 0.3 points in the documents' ResNet-50 table."),
        Rule(2, "The smallest interval that saves communication."),
    )


def _idle_unless(name: str, sentence: str) -> Callable[[Mapping[str, Value]], str | None]:
    def inactive_because(values: Mapping[str, Value]) -> str | None:
        return None if values.get(name) else sentence

    return inactive_because


def _idle_under_local_sgd(values: Mapping[str, Value]) -> str | None:
    if values.get("localsgd"):
        return "Local SGD reduces no gradients between averagings, so this has nothing to act on."
    return None


def _fusion_size_idle(values: Mapping[str, Value]) -> str | None:
    if not values.get("fuse_all_reduce_ops"):
        return "Fusion is off: every gradient travels alone."
    return _idle_under_local_sgd(values)


def _inner_idle(values: Mapping[str, Value]) -> str | None:
    if not values.get("use_hierarchical_allreduce"):
        return "Hierarchical allreduce is off."
    return _idle_under_local_sgd(values)


def _half_dtype_idle(values: Mapping[str, Value]) -> str | None:
    if not values.get("fp16_allreduce"):
        return "16-bit gradient reduction is off."
    return _idle_under_local_sgd(values)


S, X, E = Place.STRATEGY, Place.EXECUTION_STRATEGY, Place.ENVIRONMENT

_REALISED: tuple[Knob, ...] = (
    Knob(
        name="fuse_all_reduce_ops", place=S, default=True, effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Reduce gradients in fused buckets instead of one by one. Never covers sparse gradients.",
        realised="DDP's buckets; off = one bucket per parameter.",
        paddle_field="fuse_all_reduce_ops",
        unavailable_because=_fusion_unavailable, inactive_because=_idle_under_local_sgd,
    ),
    Knob(
        name="fuse_grad_size_in_MB", place=S, default=32.0, low=0.0625, high=1024.0, scale=Scale.LOG, unit="MB",
        effect=Effect.EXACT, switch=Switch.HOT, meaning="Bytes per fused allreduce.",
        realised="DDP's bucket capacity, rebuilt in place; Paddle takes whole MB.",
        paddle_field="fuse_grad_size_in_MB",
        unavailable_because=_fusion_unavailable, rule=_fuse_size_rule, inactive_because=_fusion_size_idle,
    ),
    Knob(
        name="last_comm_group_size_MB", place=S, default=1.0, low=0.0625, high=1024.0, scale=Scale.LOG, unit="MB",
        effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Size of the group that becomes ready first in the backward pass (the last layers').",
        realised="DDP's first bucket.", paddle_field="last_comm_group_size_MB",
        unavailable_because=_fusion_unavailable, rule=_last_group_rule, inactive_because=_fusion_size_idle,
    ),
    Knob(
        name="nccl_comm_num", place=S, default=1, low=1, high=4, effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Number of communicators that gradients are spread over.",
        realised="A communication hook that spreads buckets over that many process groups.",
        paddle_field="nccl_comm_num",
        unavailable_because=lambda c: _several_ranks_needed(c, "nccl_comm_num"),
        rule=_communicators_rule, inactive_because=_idle_under_local_sgd,
    ),
    Knob(
        name="sync_nccl_allreduce", place=S, default=True, effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Finish one fused allreduce before the next begins, instead of letting them overlap.",
        realised="A communication hook that runs buckets one after another.",
        paddle_field="sync_nccl_allreduce",
        unavailable_because=lambda c: _several_ranks_needed(c, "sync_nccl_allreduce"),
        inactive_because=_idle_under_local_sgd,
    ),
    Knob(
        name="use_hierarchical_allreduce", place=S, default=False, effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Two-level allreduce: inside the group first, then between groups.",
        realised="A communication hook: reduce in the group, allreduce between groups, hand back.",
        paddle_field="use_hierarchical_allreduce",
        unavailable_because=_hierarchical_unavailable, rule=_hierarchical_rule,
        inactive_because=_idle_under_local_sgd,
    ),
    Knob(
        name="hierarchical_allreduce_inter_nranks", place=S, default=1, low=1, high=64,
        effect=Effect.EXACT, switch=Switch.HOT, unit="ranks",
        meaning="Ranks in the lower-level group, normally the devices of one node.",
        realised="The inner group of the hierarchical hook.",
        paddle_field="hierarchical_allreduce_inter_nranks",
        unavailable_because=_hierarchical_unavailable, rule=_inner_rule, inactive_because=_inner_idle,
    ),
    Knob(
        name="fp16_allreduce", place=S, default=False, effect=Effect.NUMERIC, switch=Switch.HOT,
        meaning="Send gradients in 16 bits: half the bytes, rounded gradients.",
        realised="A compressing communication hook.", paddle_field="fp16_allreduce",
        unavailable_because=_half_unavailable,
        rule=lambda _: (Rule(True, "Halves the bytes on the wire where communication is exposed."),),
        inactive_because=_idle_under_local_sgd,
    ),
    Knob(
        name="fp16_allreduce_dtype", place=S, default="fp16", choices=("fp16", "bf16"),
        effect=Effect.NUMERIC, switch=Switch.HOT,
        meaning="The 16-bit type of fp16_allreduce: fp16 has more digits, bf16 more range.",
        realised="The type the hook compresses to. Paddle's fp16_allreduce is always fp16.",
        unavailable_because=_half_unavailable, inactive_because=_half_dtype_idle,
    ),
    Knob(
        name="localsgd", place=S, default=False, effect=Effect.CONVERGENCE, switch=Switch.HOT,
        meaning="Local SGD: step without synchronising, average the parameters every k steps.",
        realised="Unsynchronised DDP steps and parameter averaging.", paddle_field="localsgd",
        unavailable_because=_local_sgd_unavailable,
        rule=lambda _: (Rule(True, "Communicates once in k steps."),),
    ),
    Knob(
        name="localsgd_k_steps", place=S, default=1, low=1, high=16, scale=Scale.LOG, unit="steps",
        effect=Effect.CONVERGENCE, switch=Switch.HOT, meaning="Steps between two parameter averagings.",
        realised="The averaging interval.", paddle_field="localsgd_configs.k_steps",
        unavailable_because=_local_sgd_unavailable, rule=_local_sgd_rule,
        inactive_because=_idle_unless("localsgd", "Local SGD is off."),
    ),
    Knob(
        name="localsgd_begin_step", place=S, default=1, low=1, high=1_000_000, scale=Scale.LOG, unit="steps",
        effect=Effect.CONVERGENCE, switch=Switch.HOT,
        meaning="Post-local SGD: synchronise every step until this one (documents: the first learning-rate drop).",
        realised="Synchronised steps before local ones begin; never searched, because its value lies in the "
        "course of the whole training, which a short trial does not see.",
        paddle_field="localsgd_configs.begin_step",
        unavailable_because=lambda _: "Its value depends on the learning-rate schedule of the whole training, "
        "which a short trial does not see: set it by hand.",
        inactive_because=_idle_unless("localsgd", "Local SGD is off."),
    ),
    Knob(
        name="num_threads", place=X, default=1, low=1, high=256, scale=Scale.LOG, unit="threads",
        effect=Effect.EXACT, switch=Switch.HOT,
        meaning="CPU threads of a training process. Bigger is not better.",
        realised="Intra-op threads (torch.set_num_threads).", paddle_field="execution_strategy.num_threads",
        paddle_versions=("2.6.2",), unavailable_because=_threads_unavailable, rule=_threads_rule,
    ),
    Knob(
        name="FLAGS_fraction_of_gpu_memory_to_use", place=E, default=0.92, low=0.1, high=0.98,
        effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Share of GPU memory allocated ahead, because allocating during training is slow.",
        realised="That share is reserved in the caching allocator and capped.",
        unavailable_because=_cuda_needed("Memory pre-allocation", "FLAGS_fraction_of_gpu_memory_to_use"),
        rule=lambda _: (Rule(0.92, "Allocate ahead, leave some for the driver and NCCL."),),
    ),
)  # fmt: skip

_NCCL: tuple[Knob, ...] = (
    Knob(
        name="NCCL_SOCKET_NTHREADS", place=E, default=1, low=1, high=8, scale=Scale.LOG, unit="threads",
        effect=Effect.EXACT, switch=Switch.COLD, meaning="CPU threads per NCCL connection on TCP networks.",
        realised="Environment of the launched ranks.",
        unavailable_because=_nccl_sockets_needed,
        rule=lambda _: (Rule(4, "More threads fill a fast TCP network."),),
    ),
    Knob(
        name="NCCL_NSOCKS_PERTHREAD", place=E, default=1, low=1, high=8, scale=Scale.LOG, unit="sockets",
        effect=Effect.EXACT, switch=Switch.COLD, meaning="Sockets per NCCL thread on TCP networks.",
        realised="Environment of the launched ranks.",
        unavailable_because=_nccl_sockets_needed,
        rule=lambda _: (Rule(4, "Several sockets fill a fast TCP network."),),
    ),
)  # fmt: skip

CATALOGUE: Mapping[str, Knob] = {knob.name: knob for knob in (*_REALISED, *_NCCL, *CARRIED)}
"""Every knob by name."""
