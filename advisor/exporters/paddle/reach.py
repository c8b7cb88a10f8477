"""What Paddle 2.6.2 and 3.3.1 do with each field of a DistributedStrategy: read in their sources, run where CPUs can.

An assignment or a file that Paddle accepts proves nothing: several fields have no reader, and one stops the reduction
of gradients. A field that nobody reads is not written.
"""

from enum import StrEnum


class Reach(StrEnum):
    """Where a field acts; the same in both versions."""

    ALWAYS = "acts"
    DYNAMIC = "acts in the dynamic graph only"
    STATIC = "acts in static programs only"
    FLAG = "sets a flag only"
    NOBODY = "read by nobody"


_DYNAMIC = {"fuse_grad_size_in_MB", "last_comm_group_size_MB", "nccl_comm_num"}
_FLAGS = {"sync_nccl_allreduce", "fuse_grad_size_in_TFLOPS"}
_STATIC = {
    "fuse_all_reduce_ops", "localsgd", "localsgd_k_steps", "localsgd_begin_step", "adaptive_localsgd",
    "adaptive_localsgd_init_k_steps", "adaptive_localsgd_begin_step", "gradient_merge", "gradient_merge_k_steps",
    "gradient_merge_avg", "dgc", "cudnn_exhaustive_search", "conv_workspace_size_limit",
    "cudnn_batchnorm_spatial_persistent", "fuse_elewise_add_act_ops", "fuse_bn_act_ops", "fuse_relu_depthwise_conv",
    "fuse_broadcast_ops", "enable_inplace", "enable_backward_optimizer_op_deps", "cache_runtime_context",
    "enable_sequential_execution",
}  # fmt: skip
_NOBODY = {
    "use_hierarchical_allreduce": "",
    "hierarchical_allreduce_inter_nranks": "",
    "sync_batch_norm": "convert the model with paddle.nn.SyncBatchNorm.convert_sync_batchnorm instead",
    "num_threads": "",
    "num_iteration_per_drop_scope": "",
    "num_iteration_per_run": "",
    "use_thread_barrier": "",
    "fuse_all_optimizer_ops": "Paddle sets it to False itself",
}
"""Knobs whose field has no reader, with what else can be said."""
_HARMFUL = {
    "fp16_allreduce": "Paddle's optimizer for it and the one that reduces gradients exclude each other, so static "
    "programs would not reduce gradients at all, without a word; the dynamic graph does not read it."
}


def reach_of(knob: str) -> Reach:
    """Return where Paddle reads the knob's field."""
    if knob in _NOBODY or knob in _HARMFUL:
        return Reach.NOBODY
    if knob in _DYNAMIC:
        return Reach.DYNAMIC
    if knob in _STATIC:
        return Reach.STATIC
    return Reach.FLAG if knob in _FLAGS else Reach.ALWAYS


def explain_not_written(knob: str) -> str:
    """Return a sentence why the knob's field is never written; empty when it is."""
    if knob in _HARMFUL:
        return _HARMFUL[knob]
    if knob not in _NOBODY:
        return ""
    more = f": {_NOBODY[knob]}" if _NOBODY[knob] else ""
    return f"Paddle accepts the field and nothing in it reads it{more}."
