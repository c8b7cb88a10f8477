"""What Paddle 2.6.2 and 3.3.1 do with each field of a strategy: the one table of exports, pages and documents.

Read in Paddle's sources, and seen where CPUs can. An assignment or a file that Paddle accepts proves nothing: several
fields have no reader, one stops the reduction of gradients, and some keep a program from being built. Such fields are
not written. The conformance tests compare this table with the programs and the groups of gradients that both versions
make.
"""

from collections.abc import Mapping
from enum import StrEnum

from advisor.protocol.knobs.catalogue import CATALOGUE

VERSIONS = ("3.3.1", "2.6.2")
"""Versions that can be written for, the default first."""


class Reach(StrEnum):
    """Where a field acts."""

    ALWAYS = "acts"
    DYNAMIC = "acts in the dynamic graph only"
    STATIC = "acts in static programs only"
    FLAG = "sets a flag that was not seen to act"
    UNREAD = "acts nowhere"
    ABSENT = "does not exist"


_REMOVED = {
    "3.3.1": {
        "num_threads", "num_iteration_per_drop_scope", "num_iteration_per_run", "use_thread_barrier",
        "enable_sequential_execution",
    },
    "2.6.2": set[str](),
}  # fmt: skip
"""Knobs whose field a version does not have any more."""
_DYNAMIC = {"fuse_grad_size_in_MB", "last_comm_group_size_MB", "nccl_comm_num"}
_FLAGS = {"sync_nccl_allreduce", "fuse_grad_size_in_TFLOPS"}
_STATIC = {
    "fuse_all_reduce_ops", "fuse_grad_size_in_num", "localsgd", "localsgd_k_steps", "localsgd_begin_step",
    "adaptive_localsgd", "adaptive_localsgd_init_k_steps", "adaptive_localsgd_begin_step", "gradient_merge",
    "gradient_merge_k_steps", "gradient_merge_avg", "dgc", "cudnn_exhaustive_search", "conv_workspace_size_limit",
    "cudnn_batchnorm_spatial_persistent", "fuse_elewise_add_act_ops", "fuse_bn_act_ops", "fuse_relu_depthwise_conv",
    "enable_inplace", "enable_backward_optimizer_op_deps", "cache_runtime_context", "enable_sequential_execution",
}  # fmt: skip
_UNREAD = {
    "use_hierarchical_allreduce": "",
    "hierarchical_allreduce_inter_nranks": "",
    "sync_batch_norm": "convert the model with paddle.nn.SyncBatchNorm.convert_sync_batchnorm instead",
    "num_threads": "so the documents' rule for several machines, nccl_comm_num + 1 threads, has nothing to act on",
    "num_iteration_per_drop_scope": "",
    "num_iteration_per_run": "",
    "use_thread_barrier": "",
    "fuse_all_optimizer_ops": "Paddle sets it to False itself",
    "fuse_broadcast_ops": "fleet's programs come out the same with it, in Reduce mode as well",
}
"""Knobs whose field has no reader, with what else can be said."""
_LOCAL_SGD = (
    "localsgd", "localsgd_k_steps", "localsgd_begin_step", "adaptive_localsgd", "adaptive_localsgd_init_k_steps",
    "adaptive_localsgd_begin_step",
)  # fmt: skip
_HARMFUL = {
    "fp16_allreduce": "Paddle's optimizer for it and the one that reduces gradients exclude each other, so static "
    "programs would not reduce gradients at all, without a word; the dynamic graph does not read it.",
}
_HARMFUL_IN: Mapping[str, Mapping[str, str]] = {
    "3.3.1": dict.fromkeys(
        _LOCAL_SGD,
        "Paddle 3.3.1 fails to build a static program with it (TypeError in its own local SGD), and the dynamic graph "
        "does not read it: average the parameters in your own loop, or use Paddle 2.6.2.",
    ),
    "2.6.2": {},
}
"""Fields that do harm in one version, with what they do."""
_DYNAMIC_IN = {
    "3.3.1": {"amp", "amp_dynamic_loss_scaling", "amp_init_loss_scaling"},
    "2.6.2": frozenset[str](),
}
"""Fields that only one version's dynamic graph can use: 3.3.1 fails to build a static program with amp."""
_NEEDS = {
    "amp": "where fp16 was timed",
    "fuse_grad_size_in_num": "as the number that fuse_grad_size_in_MB holds on average",
    "a_sync": "as false, which is collective training; of jobs with parameter servers as their mode",
}
"""Knobs whose field is written under a condition or with a value of its own."""
_WRITTEN_UNVARIED = {"a_sync", "fuse_grad_size_in_num"}


def reach_of(knob: str, version: str) -> Reach:
    """Return where Paddle `version` acts on the knob's field."""
    if CATALOGUE[knob].paddle_field is None or knob in _REMOVED[version]:
        return Reach.ABSENT
    if knob in _UNREAD or knob in _HARMFUL or knob in _HARMFUL_IN[version]:
        return Reach.UNREAD
    if knob in _DYNAMIC or knob in _DYNAMIC_IN[version]:
        return Reach.DYNAMIC
    if knob in _STATIC:
        return Reach.STATIC
    return Reach.FLAG if knob in _FLAGS else Reach.ALWAYS


def explain_not_written(knob: str, version: str) -> str:
    """Return a sentence why no export for Paddle `version` has the knob's field; empty when one can have it."""
    if CATALOGUE[knob].paddle_field is None:
        return "Paddle's DistributedStrategy has no such field: use the env export."
    if knob in _REMOVED[version]:
        having = " and ".join(name for name in VERSIONS if knob not in _REMOVED[name])
        return f"The field exists in Paddle {having} only, not in {version}."
    if harm := _HARMFUL.get(knob) or _HARMFUL_IN[version].get(knob):
        return harm
    if knob in _UNREAD:
        more = f": {_UNREAD[knob]}" if _UNREAD[knob] else ""
        return f"Paddle accepts the field and nothing in it reads it{more}."
    if CATALOGUE[knob].carried and knob not in _WRITTEN_UNVARIED:
        return "It is never varied, so Paddle's own default stays."
    return ""


def describe_in_paddle(knob: str) -> str:
    """Return what the exports for each version make of the knob's field, in one line."""
    if CATALOGUE[knob].paddle_field is None:
        return "no field."
    said = {version: _say_written(knob, version) for version in VERSIONS}
    if len(set(said.values())) == 1:
        return said[VERSIONS[0]]
    return " ".join(f"In {version}: {words}" for version, words in said.items())


def _say_written(knob: str, version: str) -> str:
    if because := explain_not_written(knob, version):
        return f"not written. {because}"
    needs = f" {_NEEDS[knob]}" if knob in _NEEDS else ""
    return f"written{needs}; {reach_of(knob, version)}."
