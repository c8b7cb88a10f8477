"""The carried knobs: exported, never varied, each with the reason why."""

from advisor.protocol.base import Value
from advisor.protocol.knobs import Effect, Knob, Place, Switch

_LATER = "Not varied yet: exports leave it at the framework's own default."
_PSERVER = "Parameter-server mode: this advisor tunes collective training."
_SITE = "A setting of the site, not of the speed: kept as the job sets it."

S, B, X, E, P = (
    Place.STRATEGY,
    Place.BUILD_STRATEGY,
    Place.EXECUTION_STRATEGY,
    Place.ENVIRONMENT,
    Place.PSERVER,
)


def _carried(
    name: str,
    place: Place,
    default: Value,
    meaning: str,
    effect: Effect = Effect.EXACT,
    realised: str = _LATER,
    switch: Switch = Switch.HOT,
    paddle_field: str | None = None,
    paddle_versions: tuple[str, ...] = ("3.3.1", "2.6.2"),
    low: int | float | None = None,
    high: int | float | None = None,
    choices: tuple[str, ...] = (),
    unit: str = "",
) -> Knob:
    return Knob(
        name=name, place=place, default=default, meaning=meaning, effect=effect, switch=switch,
        realised=realised, carried=True, paddle_field=paddle_field, paddle_versions=paddle_versions,
        low=low, high=high, choices=choices, unit=unit, unavailable_because=lambda _: realised,
    )  # fmt: skip


CARRIED: tuple[Knob, ...] = (
    _carried("auto", S, False, "Let Paddle itself tune the strategy.", paddle_field="auto",
             effect=Effect.CONVERGENCE, realised="This advisor takes its place."),
    _carried("a_sync", S, True, "Parameter-server mode: asynchronous updates.", Effect.CONVERGENCE, _PSERVER,
             paddle_field="a_sync"),
    _carried("sync_batch_norm", S, False, "Batch-norm statistics across devices; not with FP16 or on CPU.",
             Effect.CONVERGENCE, paddle_field="sync_batch_norm"),
    _carried("fuse_grad_size_in_TFLOPS", S, 20.0, "Most layers per fused allreduce, despite its name.",
             paddle_field="fuse_grad_size_in_TFLOPS", low=1.0, high=1000.0, unit="layers"),
    _carried("cudnn_exhaustive_search", S, True, "Try every convolution algorithm once, keep the fastest.",
             Effect.NUMERIC, paddle_field="cudnn_exhaustive_search"),
    _carried("conv_workspace_size_limit", S, 4000, "Workspace for choosing convolution algorithms.",
             paddle_field="conv_workspace_size_limit", low=0, high=65536, unit="MB"),
    _carried("cudnn_batchnorm_spatial_persistent", S, True, "The persistent spatial batch-norm kernel.",
             Effect.NUMERIC, paddle_field="cudnn_batchnorm_spatial_persistent"),
    _carried("adaptive_localsgd", S, False, "Local SGD whose interval follows loss and learning rate (at most 16).",
             Effect.CONVERGENCE, paddle_field="adaptive_localsgd"),
    _carried("adaptive_localsgd_init_k_steps", S, 1, "First interval of adaptive local SGD.", Effect.CONVERGENCE,
             paddle_field="adaptive_localsgd_configs.init_k_steps", low=1, high=16, unit="steps"),
    _carried("gradient_merge", S, False, "Accumulate several micro-batches before communicating.",
             Effect.CONVERGENCE, paddle_field="gradient_merge"),
    _carried("gradient_merge_k_steps", S, 1, "Micro-batches per communication.", Effect.CONVERGENCE,
             paddle_field="gradient_merge_configs.k_steps", low=1, high=64, unit="steps"),
    _carried("gradient_merge_avg", S, True, "Average the merged gradients instead of adding them.",
             Effect.CONVERGENCE, paddle_field="gradient_merge_configs.avg"),
    _carried("amp", S, False, "Mixed precision.", Effect.NUMERIC, paddle_field="amp"),
    _carried("dgc", S, False, "Deep gradient compression: send only the largest gradients.", Effect.CONVERGENCE,
             paddle_field="dgc"),
    _carried("enable_sequential_execution", B, False, "Run operators in program order.",
             paddle_field="build_strategy.enable_sequential_execution", paddle_versions=("2.6.2",)),
    _carried("fuse_elewise_add_act_ops", B, False, "Fuse elementwise_add with the activation.", Effect.NUMERIC,
             paddle_field="build_strategy.fuse_elewise_add_act_ops"),
    _carried("fuse_bn_act_ops", B, False, "Fuse batch_norm with the activation.", Effect.NUMERIC,
             paddle_field="build_strategy.fuse_bn_act_ops"),
    _carried("fuse_relu_depthwise_conv", B, False, "Fuse relu with depthwise convolution; GPU only, saves memory.",
             Effect.NUMERIC, paddle_field="build_strategy.fuse_relu_depthwise_conv"),
    _carried("fuse_broadcast_ops", B, False, "Fuse broadcasts; only in Reduce mode.",
             realised="Works in Reduce mode only; this advisor tunes AllReduce mode.",
             paddle_field="build_strategy.fuse_broadcast_ops"),
    _carried("fuse_all_optimizer_ops", B, False, "One fused optimizer operator; SGD, Momentum and Adam only.",
             Effect.NUMERIC, paddle_field="build_strategy.fuse_all_optimizer_ops"),
    _carried("enable_inplace", B, False, "Reuse an input's memory for the output.",
             paddle_field="build_strategy.enable_inplace"),
    _carried("enable_backward_optimizer_op_deps", B, True, "Start the optimizer only after the whole backward pass.",
             paddle_field="build_strategy.enable_backward_optimizer_op_deps"),
    _carried("cache_runtime_context", B, False, "Keep operators' runtime contexts between steps.",
             paddle_field="build_strategy.cache_runtime_context"),
    _carried("num_iteration_per_drop_scope", X, 10, "Steps between clearing temporaries; usually 10 to 100.",
             paddle_field="execution_strategy.num_iteration_per_drop_scope", paddle_versions=("2.6.2",),
             low=1, high=1000, unit="steps"),
    _carried("num_iteration_per_run", X, 3, "Steps per call of run().",
             paddle_field="execution_strategy.num_iteration_per_run", paddle_versions=("2.6.2",),
             low=1, high=100, unit="steps"),
    _carried("use_thread_barrier", X, False, "A barrier between executor threads; for parameter servers.",
             realised=_PSERVER, paddle_field="execution_strategy.use_thread_barrier", paddle_versions=("2.6.2",)),
    _carried("NCCL_SOCKET_IFNAME", E, "", "Network interface that NCCL uses.", realised=_SITE, switch=Switch.COLD),
    _carried("NCCL_P2P_DISABLE", E, False, "Switch direct GPU-to-GPU copies off.", realised=_SITE,
             switch=Switch.COLD),
    _carried("NCCL_IB_DISABLE", E, False, "Switch InfiniBand off.", realised=_SITE, switch=Switch.COLD),
    _carried("NCCL_IB_CUDA_SUPPORT", E, True, "GPU direct RDMA.", realised=_SITE, switch=Switch.COLD),
    _carried("NCCL_DEBUG", E, "", "NCCL's log level.", choices=("", "VERSION", "WARN", "INFO"),
             realised="Logging, not speed.", switch=Switch.COLD),
    _carried("sync_mode", P, True, "Parameter servers wait for all trainers.", Effect.CONVERGENCE, _PSERVER),
    _carried("split_method", P, "RoundRobin", "How parameters are spread over servers.", realised=_PSERVER,
             choices=("RoundRobin", "HashName")),
    _carried("slice_var_up", P, True, "Split parameters of more than 8192 elements over servers.",
             realised=_PSERVER),
)  # fmt: skip
