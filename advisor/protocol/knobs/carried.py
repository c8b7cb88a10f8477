"""The carried knobs: exported, never varied, each with the reason why."""

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect, Place, Switch
from advisor.protocol.knobs.knob import Knob

_LATER = "Not varied yet: exports leave it at the framework's own default."
_PSERVER = (
    "Of parameter servers, which are tuned as options of a command of your own (mode, placement, min_block)."
)
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
    low: int | float | None = None,
    high: int | float | None = None,
    choices: tuple[str, ...] = (),
    unit: str = "",
) -> Knob:
    return Knob(
        name=name, place=place, default=default, meaning=meaning, effect=effect, switch=switch,
        realised=realised, carried=True, paddle_field=paddle_field,
        low=low, high=high, choices=choices, unit=unit, unavailable_because=lambda _: realised,
    )  # fmt: skip


CARRIED: tuple[Knob, ...] = (
    _carried("auto", S, False, "Let Paddle itself tune the strategy.", paddle_field="auto",
             effect=Effect.CONVERGENCE, realised="This advisor takes its place."),
    _carried("a_sync", S, True, "Parameter-server mode: asynchronous updates.", Effect.CONVERGENCE, _PSERVER,
             paddle_field="a_sync"),
    _carried("fuse_grad_size_in_num", S, 8, "Gradients per fused allreduce in Paddle's static programs.",
             realised="Paddle's static programs count gradients where its dynamic graph and DDP count bytes: exported "
             "as the number that fuse_grad_size_in_MB holds on average.",
             paddle_field="fuse_grad_size_in_num", low=1, high=100_000, unit="gradients"),
    _carried("cudnn_batchnorm_spatial_persistent", S, True, "The persistent spatial batch-norm kernel.",
             Effect.NUMERIC, "torch always asks cuDNN for this kernel in training: there is no switch.",
             paddle_field="cudnn_batchnorm_spatial_persistent"),
    _carried("enable_sequential_execution", B, False, "Run operators in program order.",
             paddle_field="build_strategy.enable_sequential_execution"),
    _carried("fuse_relu_depthwise_conv", B, False, "Fuse relu with depthwise convolution; GPU only, saves memory.",
             Effect.NUMERIC, "Not measured: torch has no such fusion, and on CPUs Paddle's static programs lose the "
             "relu and train another model (3.3.1 and 2.6.2), so that only a GPU can tell what it brings.",
             paddle_field="build_strategy.fuse_relu_depthwise_conv"),
    _carried("fuse_broadcast_ops", B, False, "Fuse broadcasts; only in Reduce mode.",
             realised="Not measured: it is for Reduce mode only, this advisor tunes AllReduce mode, and the static "
             "programs of fleet do not change with it.",
             paddle_field="build_strategy.fuse_broadcast_ops"),
    _carried("enable_inplace", B, False, "Reuse an input's memory for the output.",
             paddle_field="build_strategy.enable_inplace"),
    _carried("enable_backward_optimizer_op_deps", B, True, "Start the optimizer only after the whole backward pass.",
             paddle_field="build_strategy.enable_backward_optimizer_op_deps"),
    _carried("cache_runtime_context", B, False, "Keep operators' runtime contexts between steps.",
             paddle_field="build_strategy.cache_runtime_context"),
    _carried("use_thread_barrier", X, False, "A barrier between executor threads; for parameter servers.",
             realised=_PSERVER, paddle_field="execution_strategy.use_thread_barrier"),
    _carried("NCCL_SOCKET_IFNAME", E, "", "Network interface that NCCL uses.", realised=_SITE, switch=Switch.COLD),
    _carried("NCCL_P2P_DISABLE", E, False, "Switch direct GPU-to-GPU copies off.", realised=_SITE,
             switch=Switch.COLD),
    _carried("NCCL_IB_DISABLE", E, False, "Switch InfiniBand off.", realised=_SITE, switch=Switch.COLD),
    _carried("NCCL_IB_CUDA_SUPPORT", E, True, "GPU direct RDMA.", switch=Switch.COLD,
             realised="NCCL reads it no more since 2.4: how near to its network card a GPU has to be for GPU direct "
             "RDMA is NCCL_NET_GDR_LEVEL, a setting of the site."),
    _carried("NCCL_ALGO", E, "", "Force NCCL's algorithm.", choices=("", "Ring", "Tree"),
             realised="For debugging, as NCCL's documentation says: NCCL chooses by size and topology, and a forced "
             "choice may be missing on another machine.", switch=Switch.COLD),
    _carried("NCCL_PROTO", E, "", "Force NCCL's protocol.", Effect.NUMERIC, choices=("", "LL", "LL128", "Simple"),
             realised="Never searched: LL128 on hardware without its guarantees corrupts data silently.",
             switch=Switch.COLD),
    _carried("NCCL_DEBUG", E, "", "NCCL's log level.", choices=("", "VERSION", "WARN", "INFO", "ATTN", "TRACE"),
             realised="Logging, not speed.", switch=Switch.COLD),
    _carried("sync_mode", P, True, "Parameter servers wait for all trainers.", Effect.CONVERGENCE, _PSERVER),
    _carried("split_method", P, "RoundRobin", "How parameters are spread over servers.", realised=_PSERVER,
             choices=("RoundRobin", "HashName")),
    _carried("slice_var_up", P, True, "Split parameters of more than 8192 elements over servers.",
             realised=_PSERVER),
)  # fmt: skip
