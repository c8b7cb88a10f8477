"""The knobs of computation: threads, memory, kernels, fusion."""

from collections.abc import Mapping

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect, Part, Place, Scale, Switch
from advisor.protocol.knobs.applicability import cuda_needed, refused
from advisor.protocol.knobs.knob import Knob, KnobContext, Rule
from advisor.protocol.nodes.cluster import DeviceKind


def _threads_unavailable(context: KnobContext) -> str | None:
    node_cpus = max((node.cpu_count for node in context.cluster.nodes), default=1)
    if node_cpus <= 1:
        return "A rank has one CPU: more threads cannot help."
    return refused(context, "num_threads")


def _threads_rule(context: KnobContext) -> tuple[Rule, ...]:
    cpus = min((node.cpu_count for node in context.cluster.nodes), default=1)
    share = max(1, cpus // max(1, context.facts.local_world_size))
    rules = [Rule(share, f"The node's {cpus} CPUs shared by its {context.facts.local_world_size} ranks.")]
    if share != 1:
        rules.append(Rule(1, "One thread a rank leaves the cores to the other ranks."))
    on_gpu = context.facts.device is DeviceKind.CUDA
    documented = 4 if on_gpu else 2
    if documented < share:
        where = "GPUs" if on_gpu else "processors"
        rules.append(Rule(documented, f"The documents take {documented} threads a device on {where}."))
    return tuple(rules)


def _one_numa_node(context: KnobContext) -> str | None:
    if all(node.numa_nodes < 2 for node in context.cluster.nodes):
        return "The nodes have one NUMA node each: all memory is equally near to every CPU."
    return refused(context, "numa_binding")


def _recomputation_unavailable(context: KnobContext) -> str | None:
    if not context.baseline["activation_checkpointing"]:
        return "The script computes no activation again: there is nothing to keep instead."
    return refused(context, "activation_checkpointing")


def _recomputation_rule(context: KnobContext) -> tuple[Rule, ...]:
    seen = context.facts.recomputed
    return (
        Rule(False, f"{seen.per_step:g} calls a step are computed again, {seen.seconds * 1e3:.3g} ms of it."),
    )


def _recomputation_idle(values: Mapping[str, Value]) -> str | None:
    if values.get("fuse_elewise_add_act_ops") or values.get("fuse_bn_act_ops"):
        return "What torch.compile holds is computed again as the script says."
    return None


def _batch_norm_unavailable(context: KnobContext) -> str | None:
    if not context.facts.has_batch_norm:
        return "The model has no batch norm whose statistics could be synchronised."
    if context.facts.world_size < 2:
        return "There is one rank: its statistics are all there are."
    if context.several_nodes:
        return "The documents keep it to one machine: its statistics would cross the network in every layer."
    return _GPU_BATCH_NORM(context)


def _norm_fusion_unavailable(context: KnobContext) -> str | None:
    if not context.facts.has_batch_norm:
        return "The model has no batch norm: fuse_elewise_add_act_ops compiles all there is to fuse."
    return refused(context, "fuse_bn_act_ops")


def _add_fusion_unavailable(context: KnobContext) -> str | None:
    if context.facts.has_batch_norm:
        return "The model has batch norm: fuse_bn_act_ops compiles these operators along with it."
    return refused(context, "fuse_elewise_add_act_ops")


_COMPILED = (
    "torch.compile of the model inside DDP: one compilation fuses all that can be fused, which takes up to minutes in "
    "the first step, and draws dropout's random numbers in another order. Switched off, the model runs as written."
)
_GPU_BATCH_NORM = cuda_needed("Synchronised batch norm", "sync_batch_norm")
S, B, E, X = Place.STRATEGY, Place.BUILD_STRATEGY, Place.ENVIRONMENT, Place.EXECUTION_STRATEGY

COMPUTE: tuple[Knob, ...] = (
    Knob(
        name="num_threads", title="CPU threads per process",
        place=X, part=Part.COMPUTATION, default=1, low=1, high=256, scale=Scale.LOG, unit="threads",
        effect=Effect.EXACT, switch=Switch.HOT,
        meaning="CPU threads of a training process. Bigger is not better.",
        realised="Intra-op threads (torch.set_num_threads).", paddle_field="execution_strategy.num_threads",
        unavailable_because=_threads_unavailable, rule=_threads_rule,
    ),
    Knob(
        name="activation_checkpointing", title="activation checkpointing",
        place=S, part=Part.COMPUTATION, default=False, effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Compute activations again in the backward pass, which saves their memory. Off is offered where the "
        "script does so, and their memory is free.",
        realised="What torch.utils.checkpoint is given (gradient_checkpointing, checkpoint_wrapper) is called once, "
        "and its activations are kept. Refused where what is computed again changes buffers or draws random numbers of "
        "its own, and on GPUs where memory is short, by what the first steps allocated.",
        unavailable_because=_recomputation_unavailable,
        rule=_recomputation_rule,
        inactive_because=_recomputation_idle,
    ),
    Knob(
        name="numa_binding", title="torchrun --numa-binding",
        place=X, part=Part.COMPUTATION, minor=True, default="", choices=("", "node", "exclusive"),
        effect=Effect.EXACT, switch=Switch.HOT,
        meaning="CPUs that a rank's threads may use: all of the NUMA node that its GPU is at, or a share of them that "
        "no other rank uses. Ranks without GPUs are spread over the NUMA nodes.",
        realised="The affinity of the rank's threads, set in the live process as torchrun --numa-binding does at the "
        "launch; it needs neither numactl nor torch 2.9. Memory that was touched before stays where it is.",
        unavailable_because=_one_numa_node,
        rule=lambda _: (Rule("node", "Memory of another NUMA node is further away, and so is a GPU there."),),
    ),
    Knob(
        name="FLAGS_fraction_of_gpu_memory_to_use", title="GPU memory allocated ahead",
        place=E, minor=True, default=0.92, low=0.0, high=1.0,
        effect=Effect.EXACT, switch=Switch.HOT, grid=lambda _: (0.5, 0.7, 0.8, 0.92, 0.98),
        meaning="Share of GPU memory allocated ahead, because allocating during training is slow. The documents take "
        "0.7, 0.98 in their example, and warn of 0.0, at which Paddle allocates anew every time; 0.92 is Paddle's own "
        "default.",
        realised="That share is reserved in the caching allocator and capped.",
        unavailable_because=cuda_needed("Memory pre-allocation", "FLAGS_fraction_of_gpu_memory_to_use"),
        rule=lambda _: (Rule(0.7, "The documents take 0.7."), Rule(0.98, "The documents' example takes 0.98.")),
    ),
    Knob(
        name="sync_batch_norm", title="SyncBatchNorm",
        place=S, part=Part.STEP, default=False, effect=Effect.CONVERGENCE, switch=Switch.HOT,
        meaning="Batch-norm statistics across devices; not with FP16 or on CPU.",
        realised="BatchNorm layers become torch.nn.SyncBatchNorm in place: the same parameters and statistics.",
        paddle_field="sync_batch_norm", unavailable_because=_batch_norm_unavailable,
    ),
    Knob(
        name="fuse_all_optimizer_ops", title="fused optimizer",
        place=B, part=Part.OPTIMIZER, default=False,
        effect=Effect.NUMERIC, switch=Switch.HOT,
        meaning="One fused optimizer operator; Paddle has it for SGD, Momentum and Adam only.",
        realised="torch's fused implementation where it has one for the optimizer and the device, else foreach.",
        paddle_field="build_strategy.fuse_all_optimizer_ops",
        unavailable_because=lambda context: refused(context, "fuse_all_optimizer_ops"),
        rule=lambda _: (Rule(True, "One operator for all parameters: the documented ResNet fused 161 of them."),),
    ),
    Knob(
        name="fuse_elewise_add_act_ops", title="torch.compile",
        place=B, part=Part.COMPUTATION, default=False,
        effect=Effect.NUMERIC, switch=Switch.SLOW, meaning="Fuse elementwise_add with the activation.",
        realised=_COMPILED, paddle_field="build_strategy.fuse_elewise_add_act_ops",
        unavailable_because=_add_fusion_unavailable,
        rule=lambda _: (Rule(True, "A fused add of three tensors reads and writes 4 tensors instead of 6."),),
    ),
    Knob(
        name="fuse_bn_act_ops", title="torch.compile (batch norm)",
        place=B, part=Part.COMPUTATION, default=False,
        effect=Effect.NUMERIC, switch=Switch.SLOW, meaning="Fuse batch_norm with the activation.",
        realised=_COMPILED, paddle_field="build_strategy.fuse_bn_act_ops",
        unavailable_because=_norm_fusion_unavailable,
        rule=lambda _: (Rule(True, "Normalisation and activation in one pass over the memory."),),
    ),
    Knob(
        name="cudnn_exhaustive_search", title="cudnn.benchmark",
        place=S, part=Part.COMPUTATION, default=True,
        effect=Effect.NUMERIC, switch=Switch.COLD,
        meaning="Try every convolution algorithm once, keep the fastest for each shape.",
        realised="torch.backends.cudnn.benchmark from the start: cuDNN keeps the plans it has made.",
        paddle_field="cudnn_exhaustive_search",
        unavailable_because=cuda_needed("Choosing cuDNN's algorithms", "cudnn_exhaustive_search"),
        rule=lambda _: (Rule(True, "Worth its slow first step where the shapes stay the same."),),
    ),
    Knob(
        name="conv_workspace_size_limit", title="cuDNN's workspace limit",
        place=S, part=Part.COMPUTATION, default=4000, low=0, high=65536, unit="MB",
        effect=Effect.NUMERIC, switch=Switch.COLD, variable="CUDNN_CONV_WSCAP_DBG",
        grid=lambda _: (256, 1000, 4000, 65536),
        meaning="Workspace for choosing convolution algorithms: memory against speed.",
        realised="CUDNN_CONV_WSCAP_DBG of the launched ranks, cuDNN's own limit; without it, which the largest value "
        "stands for, torch gives a convolution whatever it asks for.",
        paddle_field="conv_workspace_size_limit",
        unavailable_because=cuda_needed("cuDNN's workspace", "conv_workspace_size_limit"),
        rule=lambda _: (Rule(4000, "The documents' limit: one convolution does not take all the memory."),),
    ),
    Knob(
        name="num_iteration_per_drop_scope", title="garbage collected every",
        place=X, part=Part.COMPUTATION, minor=True,
        default=10, low=1, high=1000, unit="steps", effect=Effect.EXACT, switch=Switch.HOT,
        grid=lambda _: (1, 10, 30, 100),
        meaning="Steps between clearing temporaries; usually 10 to 100.",
        realised="Python's garbage is collected between steps, every so many of them, instead of inside them; 1 is "
        "Python's own collector.",
        paddle_field="execution_strategy.num_iteration_per_drop_scope",
        unavailable_because=lambda context: refused(context, "num_iteration_per_drop_scope"),
        rule=lambda _: (Rule(30, "The documents' example clears every 30 steps."),),
    ),
    Knob(
        name="num_iteration_per_run", title="steps queued ahead of the GPU",
        place=X, part=Part.STEP, minor=True, default=3, low=1, high=100, unit="steps",
        effect=Effect.EXACT, switch=Switch.HOT, grid=lambda _: (1, 3, 10, 100),
        meaning="Steps per call of run().",
        realised="Steps that the host may queue ahead of the GPU before it waits; 100 sets no limit, as torch does.",
        paddle_field="execution_strategy.num_iteration_per_run",
        unavailable_because=cuda_needed("Queueing ahead of the device", "num_iteration_per_run"),
        rule=lambda _: (Rule(3, "The documents' default: enough to keep the device busy, little memory in flight."),),
    ),
)  # fmt: skip
