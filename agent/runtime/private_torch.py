"""Every private name of torch that the runtime uses, declared once; one that this torch lacks is told in a sentence.

torch does not promise to keep these names. No other module of the runtime spells one (an architecture test looks), and
`make conformance` looks each of them up in the sources of torch 2.1 to 2.15.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from typing import Any, Iterable, List, Optional, Tuple

import torch
import torch.distributed as dist

OLDEST, NEWEST = (2, 1), (2, 15)
"""The versions of torch that the names were looked up in."""


class Missing(RuntimeError):
    """This torch lacks a private name; the text says which one and what for."""


@dataclass(frozen=True)
class Private:
    """A private name, and what the runtime does with it."""

    homes: str
    """Where torch's sources define it: `module` or `module:Class`; where it moved, one place for each time, by `|`."""
    name: str
    use: str
    """What it is needed for: the end of a sentence that begins with "to"."""
    since: Tuple[int, int] = OLDEST
    """The first torch that has it."""
    until: Tuple[int, int] = NEWEST
    """The last torch that was seen to have it."""
    is_listed: bool = True
    """Whether torch's Python sources, or stubs, say that it is there; otherwise only the compiled library does."""

    def of(self, owner: Any) -> Any:
        """`owner`'s; raises Missing."""
        try:
            return getattr(owner, self.name)
        except AttributeError:
            raise Missing(self.explain_missing()) from None

    def find(self, owner: Any, otherwise: Any = None) -> Any:
        return getattr(owner, self.name, otherwise)

    def is_in(self, owner: Any) -> bool:
        return hasattr(owner, self.name)

    def set(self, owner: Any, value: Any) -> None:
        setattr(owner, self.name, value)

    def load(self) -> Any:
        """Imported from its module; raises Missing."""
        found = [getattr(_import(home), self.name, None) for home in self._list_modules()]
        for value in found:
            if value is not None:
                return value
        raise Missing(self.explain_missing())

    def find_loaded(self) -> Any:
        """From its module, None where the script has not imported that, or torch has no such name."""
        found = (getattr(sys.modules.get(home), self.name, None) for home in self._list_modules())
        return next((value for value in found if value is not None), None)

    def list_loaded(self) -> List[Any]:
        """From each of its modules that the script has imported."""
        found = (getattr(sys.modules.get(home), self.name, None) for home in self._list_modules())
        return [value for value in found if value is not None]

    def import_home(self) -> Any:
        """The module that defines it, None where there is none."""
        return _import(self._list_modules()[-1])

    def has_home(self) -> bool:
        """Whether the module that defines it is installed; imports no more than the packages it is in."""
        return importlib.util.find_spec(self._list_modules()[-1]) is not None

    def explain_missing(self) -> str:
        home = self.homes.split("|")[-1]
        where = home.split(":")[1] if ":" in home else home
        known = " to ".join(".".join(map(str, version)) for version in (self.since, self.until))
        return (
            f"torch {torch.__version__} has no {where}.{self.name}, which the advisor needs to {self.use}; "
            f"torch {known} has it."
        )

    def _list_modules(self) -> List[str]:
        return [home.split(":")[0] for home in self.homes.split("|")]


def explain_missing(owner: Any, names: Iterable[Private]) -> Optional[str]:
    """The sentence for the first of the names that `owner` lacks; None where it has them all."""
    return next((name.explain_missing() for name in names if not name.is_in(owner)), None)


def explain_not_loadable(names: Iterable[Private]) -> Optional[str]:
    """The sentence for the first of the names that cannot be imported; imports their modules."""
    for name in names:
        try:
            name.load()
        except Missing as missing:
            return str(missing)
    return None


def explain_unusable(replicas: Iterable[Any]) -> Optional[str]:
    """Why nothing at all of these models can be measured with this torch, the same on every rank; None where it can."""
    missing = [explain_not_loadable([DEFAULT_STORE])]
    missing += [explain_missing(ddp, (MODULE_PARAMETERS, GET_LOG, SET_LOG_RATE)) for ddp in replicas]
    return next(filter(None, missing), None)


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


# Ranks.

DEFAULT_STORE = Private(
    "torch.distributed.distributed_c10d", "_get_default_store", "let the ranks talk to each other"
)

NCCL_GROUP = Private(
    "torch.distributed.distributed_c10d",
    "ProcessGroupNCCL",
    "give communicators a configuration of their own",
)
ABORT_GROUP = Private(
    "torch.distributed.distributed_c10d", "_abort_process_group", "give up a communicator that failed", (2, 6)
)
TIMEOUT = Private(
    "torch._C._distributed_c10d:ProcessGroup|torch._C._distributed_c10d:Backend",
    "_timeout",
    "have ranks wait for each other as long as the script lets them",
    (2, 3),
)

# Collectives.

FUNCTIONAL = "torch.distributed._functional_collectives"
_WAITS = "time the script's own collectives"
GATHER_INTO = Private("torch._C._distributed_c10d:ProcessGroup", "_allgather_base", _WAITS)
SCATTER_INTO = Private("torch._C._distributed_c10d:ProcessGroup", "_reduce_scatter_base", _WAITS)
BROADCAST_MODEL = Private("torch._C._distributed_c10d", "_broadcast_coalesced", _WAITS)
REBUILD_BUCKETS = Private("torch._C._distributed_c10d:Reducer", "_rebuild_buckets", _WAITS)

# DistributedDataParallel as it stands.

_DDP = "torch.nn.parallel.distributed:DistributedDataParallel"
_C10D = "torch._C._distributed_c10d"
_REBUILD = "change buckets and their reduction between two steps"

MODULE_PARAMETERS = Private(_DDP, "_module_parameters", "know which gradients a model reduces")
GET_LOG = Private(
    f"{_C10D}:Logger|{_DDP}", "_get_ddp_logging_data", "read the buckets and the communication of a step"
)
SET_LOG_RATE = Private(_DDP, "_set_ddp_runtime_logging_sample_rate", "time the communication of a step")
PYTHON_REDUCER = Private(_DDP, "_use_python_reducer", "see that compiled code reduces by itself", (2, 3))
DELAYS_ALL = Private(_DDP, "_delay_all_reduce_all_params", "see that the script delays all-reduces")
DELAYED = Private(_DDP, "_delay_all_reduce_params", "see that the script delays all-reduces")
IN_BACKWARD = Private(
    "torch.distributed.optim.apply_optimizer_in_backward",
    "_in_backward_optimizers",
    "see that an optimizer runs inside backward",
)

# Its reducer.

FIRST_BUCKET_BYTES = Private(_C10D, "_DEFAULT_FIRST_BUCKET_BYTES", "set the size of the first bucket")
USUAL_FIRST_BUCKET_BYTES = 1024 * 1024
"""Its value in every torch that has it."""
BUCKET_CONFIG = Private(_DDP, "_bucket_config", "give each bucket a size of its own", (2, 12))
BUILD_REDUCER = Private(_DDP, "_ddp_init_helper", _REBUILD)
HAS_REBUILT = Private(_DDP, "_has_rebuilt_buckets", _REBUILD)
STATIC_ENQUEUED = Private(_DDP, "_static_graph_delay_allreduce_enqueued", _REBUILD)
SET_STATIC = Private(f"{_C10D}:Logger|{_C10D}:Reducer", "_set_static_graph", _REBUILD)
SET_HOOK_NAME = Private(f"{_C10D}:Logger", "_set_comm_hook_name", _REBUILD)
REGISTER_HOOK = Private(_C10D, "_register_comm_hook", _REBUILD)
REGISTER_BUILTIN_HOOK = Private(_DDP, "_register_builtin_comm_hook", _REBUILD)
HOOKS = Private(_DDP, "_comm_hooks", "keep the script's communication hook", (2, 2))
JOINING = Private(
    "torch.distributed.algorithms.join:Joinable", "_join_config", "see that ranks may run out of data"
)
FORGET_PASS = Private(f"{_C10D}:Reducer", "_reset_state", "have several reducers of a model", (2, 3))
_UNUSED = "leave out DDP's search for unused parameters"
CHECK_FINALIZED = Private(_DDP, "_check_reducer_finalized", _UNUSED)
MARK_READY = Private(_DDP, "_fire_reducer_autograd_hook", "hand gradients to DDP's reducer")
IS_STATIC = Private(f"{_C10D}:Reducer", "_ddp_graph_static", _UNUSED, is_listed=False)
AFTER_ACCUMULATION = Private(
    "torch._tensor:Tensor", "_post_accumulate_grad_hooks", "see who looks at gradients as they come"
)


def explain_no_new_reducer(ddp: Any) -> Optional[str]:
    """Which name is missing for another reducer of this model; None where all are there."""
    by_class = (BUILD_REDUCER, HAS_REBUILT, REGISTER_BUILTIN_HOOK)
    static = (SET_STATIC,) if ddp.static_graph else ()
    return (
        explain_missing(ddp, by_class)
        or explain_missing(ddp.logger, (SET_HOOK_NAME, *static))
        or explain_missing(ddp.reducer, static)
        or explain_missing(dist, (REGISTER_HOOK,))
        or (None if BUCKET_CONFIG.is_in(ddp) else explain_missing(dist, (FIRST_BUCKET_BYTES,)))
    )


# Sharded models.

FULLY_SHARDED = Private(
    "torch.distributed._composable.fsdp|torch.distributed.fsdp", "FSDPModule", "find sharded models", (2, 4)
)
_SHARDING = "tell which of a sharded model's parameters are gathered together"
_STATES = "torch.distributed._composable.fsdp._fsdp_state|torch.distributed.fsdp._fully_shard._fsdp_state"
GET_SHARDED_STATE = Private(
    "torch.distributed._composable.fsdp.fully_shard|torch.distributed.fsdp._fully_shard._fully_shard",
    "_get_fsdp_state",
    _SHARDING,
    (2, 3),
)
PARAMETER_GROUP = Private(_STATES, "_fsdp_param_group", _SHARDING, (2, 3))
SYNCS_GRADIENTS = Private(
    "torch.distributed.fsdp.fully_sharded_data_parallel:FullyShardedDataParallel",
    "_sync_gradients",
    "count the passes that reduce gradients",
)
PARAMETER_GROUPS = Private(_STATES, "_fsdp_param_groups", _SHARDING, (2, 12))
_FEWER = "shard a model's parameters again over fewer ranks"
_INIT = "torch.distributed._composable.fsdp._fsdp_init|torch.distributed.fsdp._fully_shard._fsdp_init"
MAKE_MESH = Private(_INIT, "_get_post_forward_mesh_info", _FEWER, (2, 3))
_PARAMETERS = "torch.distributed._composable.fsdp._fsdp_param|torch.distributed.fsdp._fully_shard._fsdp_param"
CHOOSE_SHARES = Private(_PARAMETERS, "_init_sharded_post_forward_param_metadata", _FEWER, (2, 3))
_GROUPS = "torch.distributed._composable.fsdp._fsdp_param_group|torch.distributed.fsdp._fully_shard._fsdp_param_group"
_ROOTS = "torch.distributed.fsdp._fully_shard._fully_shard:FSDPModule"
_SPELLED = "fsdp_params is_sharded_post_forward is_unsharded mesh_info post_forward_mesh_info unshard wait_for_unshard"
SPELLED = tuple(Private(_GROUPS, name, _SHARDING, (2, 3)) for name in _SPELLED.split())
"""What is read of a group by its name, and is not marked as private."""
_AHEAD = "gather a sharded model's parameters ahead of their use"
FORWARD_STATES = Private(_STATES, "_states_to_forward_prefetch", _AHEAD, (2, 5))
BACKWARD_STATES = Private(_STATES, "_states_to_backward_prefetch", _AHEAD, (2, 5))
GATHER_CONTEXT = Private(_GROUPS, "comm_ctx", "see what a sharded model communicates", (2, 3))
FORWARD_ORDER = Private(_GROUPS, "post_forward_order", _AHEAD, (2, 3))
GATHERED = Private(_GROUPS, "_all_gather_result", _AHEAD, (2, 3))
_WIRE = "reduce a sharded model's gradients in 16 bits"
REDUCTION_FORMAT = Private(_GROUPS, "_reduce_dtype", _WIRE, (2, 3))
ADDS_COPIES = Private(_GROUPS, "all_reduce_grads", _WIRE, (2, 3))
POLICY = Private(_PARAMETERS, "mp_policy", _WIRE, (2, 4))
_SEVERAL = "keep several reductions under way"
SCATTER_BUFFERS = Private(_GROUPS, "reduce_scatter_max_input_buffers", _SEVERAL, (2, 13))
UNDER_WAY = Private(_GROUPS, "reduce_scatter_states", _SEVERAL, (2, 12))
_OWN_GROUP = "reduce a sharded model's gradients over a communicator of their own"
SCATTER_GROUP = Private(
    "torch.distributed.fsdp._fully_shard._fsdp_common:FSDPMeshInfo",
    "reduce_scatter_process_group",
    _OWN_GROUP,
    (2, 13),
)
SEPARATE_SCATTER = Private(_ROOTS, "set_separate_reduce_scatter_group", _OWN_GROUP, (2, 13))
_OWN_MEMORY = "give a sharded model's communication memory of the communicator's own"
GATHER_BUFFERS = Private(_GROUPS, "_all_gather_comm", _OWN_MEMORY, (2, 9))
REDUCTION_BUFFERS = Private(_GROUPS, "_reduce_scatter_comm", _OWN_MEMORY, (2, 9))
GET_BACKEND = Private(f"{_C10D}:ProcessGroup", "_get_backend", _OWN_MEMORY, (2, 3))
HANDLE = Private("torch.distributed.fsdp._common_utils:_FSDPState", "_handle", "measure a sharded model")
UNPADDED_SIZE = Private(
    "torch.distributed.fsdp.flat_param|torch.distributed.fsdp._flat_param",
    "_unpadded_unsharded_size",
    "measure a sharded model",
)

# Reading.

_LOADER = "torch.utils.data.dataloader"
_READ = "read with other loader settings and the same batches"
DATASET_KIND = Private(f"{_LOADER}:DataLoader", "_dataset_kind", _READ)
DATASET_KINDS = Private(_LOADER, "_DatasetKind", _READ)
ANY_ITERATOR = Private(_LOADER, "_BaseDataLoaderIter", _READ)
WORKERS_ITERATOR = Private(_LOADER, "_MultiProcessingDataLoaderIter", _READ)
PLAIN_ITERATOR = Private(_LOADER, "_SingleProcessDataLoaderIter", _READ)
INDEX_SAMPLER = Private(f"{_LOADER}:DataLoader|{_LOADER}:_BaseDataLoaderIter", "_index_sampler", _READ)
KEPT_ITERATOR = Private(f"{_LOADER}:DataLoader", "_iterator", _READ)
MAKES_BATCHES = Private(f"{_LOADER}:DataLoader", "_auto_collation", _READ)
INDICES = Private(f"{_LOADER}:_BaseDataLoaderIter", "_sampler_iter", _READ)
BASE_SEED = Private(f"{_LOADER}:_BaseDataLoaderIter", "_base_seed", _READ)
BEGIN_AGAIN = Private(f"{_LOADER}:_BaseDataLoaderIter", "_reset", _READ)
STOP_WORKERS = Private(f"{_LOADER}:_MultiProcessingDataLoaderIter", "_shutdown_workers", _READ)
WORKERS = Private(f"{_LOADER}:_MultiProcessingDataLoaderIter", "_workers", _READ)
ASKED = Private(f"{_LOADER}:_MultiProcessingDataLoaderIter", "_send_idx", _READ)
RECEIVED = Private(f"{_LOADER}:_MultiProcessingDataLoaderIter", "_rcvd_idx", _READ)
_FILL = "have every strategy find the queue of batches as it left it"
DELIVERED = Private(f"{_LOADER}:_MultiProcessingDataLoaderIter", "_data_queue", _FILL)
TASKS = Private(f"{_LOADER}:_MultiProcessingDataLoaderIter", "_task_info", _FILL)
ASK_AGAIN = Private(f"{_LOADER}:_MultiProcessingDataLoaderIter", "_try_put_index", _FILL)


def explain_unknown_loader(loader: Any) -> Optional[str]:
    """Which name is missing to take this loader's batches elsewhere; None where all are there."""
    return explain_not_loadable(
        (DATASET_KINDS, ANY_ITERATOR, WORKERS_ITERATOR, PLAIN_ITERATOR)
    ) or explain_missing(loader, (DATASET_KIND, INDEX_SAMPLER, KEPT_ITERATOR, MAKES_BATCHES))


def explain_unknown_iterator(iterator: Any) -> Optional[str]:
    """The same for one of its iterators."""
    names = (INDEX_SAMPLER, INDICES, BASE_SEED, BEGIN_AGAIN)
    with_workers = isinstance(iterator, WORKERS_ITERATOR.load())
    return explain_missing(
        iterator, (*names, STOP_WORKERS, WORKERS, ASKED, RECEIVED) if with_workers else names
    )


def explain_unknown_queue(iterator: Any) -> Optional[str]:
    """Which name is missing to fill and to empty the queue of this iterator; None where all are there."""
    return explain_missing(iterator, (WORKERS, ASKED, RECEIVED, INDICES, DELIVERED, TASKS, ASK_AGAIN))


# Compilation.

DYNAMO = "torch._dynamo"
DYNAMO_CALLBACKS = f"{DYNAMO}.callback"
_WATCH = "time what a script compiles in the midst of its steps"
COMPILE_BEGINS = Private(DYNAMO_CALLBACKS, "on_compile_start", _WATCH, (2, 3))
COMPILE_ENDS = Private(DYNAMO_CALLBACKS, "on_compile_end", _WATCH, (2, 3))
PAST_OVERRIDES = Private(
    "torch._C", "DisableTorchFunctionSubclass", "look at a tensor without asking the script's class of it"
)
_COMPILE = "compile the model"
DISABLE_DYNAMO = Private("torch._compile", "_disable_dynamo", "keep torch.compile out of the runtime")
SKIP_FUNCTION = Private(f"{DYNAMO}.decorators", "skip", "keep torch.compile out of the runtime")
SKIP_CODE = Private(f"{DYNAMO}.eval_frame", "skip_code", "keep torch.compile out of the runtime")
COMPILED_MODEL = Private(f"{DYNAMO}.eval_frame", "OptimizedModule", "see what the script compiles")
ORIGINAL = Private(f"{DYNAMO}.eval_frame:OptimizedModule", "_orig_mod", "see what the script compiles")
COMPILED_CALL = Private("torch.nn.modules.module:Module", "_compiled_call_impl", _COMPILE)
CALL = Private("torch.nn.modules.module:Module", "_call_impl", _COMPILE)
FORWARD_HOOKS = Private("torch.nn.modules.module:Module", "_forward_hooks", "see what the script watches")
CUTS_AT_BUCKETS = Private(f"{DYNAMO}.config", "optimize_ddp", "see what the script compiles")
SUPPRESS_ERRORS = Private(f"{DYNAMO}.config", "suppress_errors", _COMPILE)
MOST_VERSIONS = Private(f"{DYNAMO}.config", "recompile_limit", _COMPILE, (2, 7))
MOST_CACHED = Private(f"{DYNAMO}.config", "cache_size_limit", _COMPILE)
COMPILE_THREADS = Private("torch._inductor.config", "compile_threads", _COMPILE)
COMPILE_GRAPH = Private("torch._inductor.compile_fx", "compile_fx", _COMPILE)
IS_SUPPORTED = Private(f"{DYNAMO}.eval_frame", "is_dynamo_supported", _COMPILE)


def is_dynamo_loaded() -> bool:
    return DYNAMO in sys.modules


def choose_versions_limit() -> Private:
    """The setting of how many compiled versions of a model are kept."""
    return MOST_VERSIONS if MOST_VERSIONS.is_in(MOST_VERSIONS.import_home()) else MOST_CACHED


def explain_no_compilation() -> Optional[str]:
    """Which name is missing to compile a model; None where all are there. Imports Dynamo, but not Inductor, which takes
    each rank a second and is needed by no script that compiles nothing."""
    missing = explain_missing(torch.nn.Module, (COMPILED_CALL, CALL)) or explain_not_loadable(
        (IS_SUPPORTED, SUPPRESS_ERRORS, COMPILE_THREADS, choose_versions_limit())
    )
    return missing or (None if COMPILE_GRAPH.has_home() else COMPILE_GRAPH.explain_missing())


# Arithmetic.

FOREACH_MULTIPLY = Private("torch._C._VariableFunctions", "_foreach_mul_", "scale gradients down")
FOREACH_NORM = Private("torch._C._VariableFunctions", "_foreach_norm", "look for overflows in gradients")
SPARSE_VALUES = Private("torch._C", "_values", "count the bytes of sparse gradients")
CHOOSE_FUSION = Private(
    "torch.optim.optimizer", "_default_to_fused_or_foreach", "know how an optimizer runs unasked"
)
SCALES_ITSELF = Private("torch.optim.adam:Adam", "_step_supports_amp_scaling", "have a loss scaler unscale")
"""With it a GradScaler leaves the unscaling to the optimizer, which only a fused one does."""
AUTOCAST_ON = Private(
    "torch.amp.autocast_mode:autocast", "_enabled", "see in which number format the script computes"
)
REPEATED = Private("torch.utils.checkpoint", "_checkpoint_without_reentrant_generator", "keep activations")
REPEATED_IMPL = Private("torch.utils.checkpoint", f"{REPEATED.name}_impl", REPEATED.use, (2, 14))
VERSION = Private("torch._C:_TensorBase|torch._C:TensorBase", "_version", "see what a forward changes")
BATCH_NORM = Private("torch.nn.modules.batchnorm", "_BatchNorm", "find batch norms")
CONVOLUTION = Private("torch.nn.modules.conv", "_ConvNd", "find convolutions")


def is_batch_norm(module: Any) -> bool:
    public = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm)
    return isinstance(module, BATCH_NORM.find(torch.nn.modules.batchnorm, public))


def is_convolution(module: Any) -> bool:
    public = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.ConvTranspose2d)
    return isinstance(module, CONVOLUTION.find(torch.nn.modules.conv, public))


ALL = (*(value for value in list(vars().values()) if isinstance(value, Private)), *SPELLED)
